"""horovod.tensorflow.elastic: hvd.tensorflow.elastic."""

from hvd.tensorflow.elastic import (ElasticSampler, HorovodInternalError, HostsUpdatedInterrupt,  # noqa: F401
                                    ObjectState, State, TensorFlowState, run)


def __getattr__(name):
    if name == "TensorFlowKerasState":  # Keras is loaded when it is asked for
        from hvd.tensorflow.elastic import TensorFlowKerasState

        return TensorFlowKerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
