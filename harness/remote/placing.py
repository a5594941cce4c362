"""The nodes with GPUs that are large enough for a run, as a pure function of their sizes and predictions."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness import words
from harness.errors import UsageError
from harness.predict.answer import Answer, Prediction, Target, fits
from harness.records.run import DeviceKind
from harness.remote.protocol import GpuSize
from harness.settings import Settings

# Returns the prediction for a run on a device.
Predict = Callable[[Settings, Target], Answer]


class GpuNode(NamedTuple):
    """A node with GPUs. Ray gives a run any of them, so the smallest counts; None if none responds."""

    node_id: str
    smallest: GpuSize | None


def fitting_nodes(nodes: Sequence[GpuNode], settings: Settings, predict: Predict) -> list[GpuNode]:
    """Return the nodes where the run fits, or where that cannot be predicted. Raises UsageError when it is
    predicted to fit on none."""
    verdicts = {size: _problem(settings, size, predict) for size in {node.smallest for node in nodes}}
    fitting = [node for node in nodes if not verdicts[node.smallest]]
    if nodes and not fitting:
        problems = "; ".join(sorted(problem for problem in verdicts.values() if problem))
        raise UsageError(
            f"No GPU of the cluster is large enough: {problems}. Make it smaller, or give --force."
        )
    return fitting


def _problem(settings: Settings, size: GpuSize | None, predict: Predict) -> str:
    """Return why the run does not fit on such a GPU; "" if it may."""
    if size is None:
        return ""
    target = Target(DeviceKind.CUDA, size.name, size.memory_bytes)
    answer = predict(settings, target)
    if not isinstance(answer, Prediction) or fits(answer, settings, target) is not False:
        return ""
    needed = words.size(answer.needed_bytes)
    return f"{size.name} has {words.size(size.memory_bytes)}, and {needed} are predicted"
