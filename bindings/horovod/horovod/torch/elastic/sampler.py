"""ElasticSampler."""

from hvd.elastic import ElasticSampler  # noqa: F401
