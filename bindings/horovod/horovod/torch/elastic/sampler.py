"""ElasticSampler."""

from hvd.torch.elastic import ElasticSampler  # noqa: F401
