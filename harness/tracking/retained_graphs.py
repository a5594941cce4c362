"""Autograd graphs that outlived their steps, for the leak hunt. Free of torch."""

from typing import NamedTuple


class RetainedGraphs(NamedTuple):
    """Graphs that outlived their steps: those of `retained` out of `steps` steps. `operation` and `site` are
    those of the tensor that retains them; None if unknown."""

    retained: int
    steps: int
    operation: str | None = None
    site: str | None = None
