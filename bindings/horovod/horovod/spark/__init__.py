"""horovod.spark: run and run_elastic. Estimators and stores are not there."""

from hvd.spark import run, run_elastic

__all__ = ["run", "run_elastic"]
