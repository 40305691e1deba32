"""hvd.keras.callbacks."""

from hvd.keras.callbacks import (BestModelCheckpoint, BroadcastGlobalVariablesCallback, LearningRateScheduleCallback, LearningRateWarmupCallback, MetricAverageCallback)  # noqa: F401
