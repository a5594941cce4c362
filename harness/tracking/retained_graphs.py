"""Autograd graphs that outlived their steps, for the leak hunt. Free of torch."""

from typing import NamedTuple


class RetainedGraphs(NamedTuple):
    """Graphs that outlived their steps: those of `retained` out of `steps` steps. `operation` and `site` are
    those of the tensor that retains them; None if unknown. `of_losses`: they are the graphs of losses, which
    is not known of those that other results retain."""

    retained: int
    steps: int
    operation: str | None = None
    site: str | None = None
    of_losses: bool = True
