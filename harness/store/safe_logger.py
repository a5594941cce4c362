"""A logger for messages about the files of a run, within the process of a training."""

import logging
from contextlib import suppress
from typing import Any


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that raises nothing: handlers are those of the training's program, and Python's own fails
    where standard error is closed."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message; it is dropped where a handler fails."""
        with suppress(Exception):  # Whatever a handler raises.
            super().log(level, msg, *args, **({"stacklevel": 2} | kwargs))  # Not this frame, but its caller.
