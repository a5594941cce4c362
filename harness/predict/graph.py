"""The nodes of autograd's graph."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def nodes_behind(results: Iterable[Tensor]) -> set[Any]:
    """Return the nodes of the graph by which the `results` were computed."""
    visited: set[Any] = set()
    waiting: list[Any] = [result.grad_fn for result in results]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return visited
