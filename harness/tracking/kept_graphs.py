"""Autograd graphs that outlived their steps, as a leak hunt counts them. Free of torch."""

from typing import NamedTuple


class KeptGraphs(NamedTuple):
    """Graphs that outlived their steps: of `steps` steps, those of `kept`. `operation` made the tensor that
    holds them, at the line `site`; None where it was not found."""

    kept: int
    steps: int
    operation: str | None = None
    site: str | None = None
