"""TorchState."""

from hvd.torch.elastic import ElasticSampler, ObjectState, TorchState  # noqa: F401
