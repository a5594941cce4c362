"""The version of cuDNN that is loaded."""

import torch


def read_cudnn_version() -> int | str | None:
    """Return cuDNN's version number, None without one, or why it has none.

    torch raises a RuntimeError where another cuDNN is found first, such as that of LD_LIBRARY_PATH. What does
    not use it trains all the same.
    """
    if not torch.backends.cudnn.is_available():
        return None
    try:
        number: int | None = torch.backends.cudnn.version()
    except RuntimeError as error:
        return str(error).strip()
    return number
