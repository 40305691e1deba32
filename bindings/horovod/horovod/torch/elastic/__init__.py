"""horovod.torch.elastic: hvd.torch.elastic."""

from hvd.torch.elastic import *  # noqa: F401,F403
