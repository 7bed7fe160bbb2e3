"""Keep and train symbols as before modules, and tell how training goes: `mx.model` and `mx.callback`."""

from weft.mx.training.feed_forward import FeedForward
from weft.mx.training.saved_models import (
    BatchEndParam,
    LogValidationMetricsCallback,
    ProgressBar,
    Speedometer,
    do_checkpoint,
    load_checkpoint,
    load_params,
    log_train_metric,
    module_checkpoint,
    save_checkpoint,
)

__all__ = [
    "BatchEndParam",
    "FeedForward",
    "LogValidationMetricsCallback",
    "ProgressBar",
    "Speedometer",
    "do_checkpoint",
    "load_checkpoint",
    "load_params",
    "log_train_metric",
    "module_checkpoint",
    "save_checkpoint",
]
