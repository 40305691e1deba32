"""hvd.keras.callbacks."""

from hvd.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,  # noqa: F401
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback)
