"""Nodes of a Ray cluster (https://docs.ray.io). The only module that imports Ray.

A run is one actor: a device of its own (a GPU, or all CPUs of a node), and the predicted memory of a run on
the CPU. The memory of GPUs is not part of Ray's resources, so a run names the nodes where it fits. The actor
ends with the collector, and its training with the actor. Ray's scheduler chooses the node, and lets runs wait
for one.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

from harness.errors import MissingLibraryError, StepscopeError
from harness.remote.node import NodeRun, node_home, smallest_gpu
from harness.remote.placing import GpuNode
from harness.remote.protocol import GpuSize, News, NodeLostError, NodeRequest, NodeSilentError, Pull

_ADDRESS_VARIABLE = "RAY_ADDRESS"
_NOT_THERE = (
    "No Ray cluster can be reached ({}); start one (`ray start --head`), or set RAY_ADDRESS to its head."
)
_CLOSE_S = 30.0
_SIZES_S = 30.0
# Ray labels each node with its id.
_NODE_ID_LABEL = "ray.io/node-id"
_LONGEST_REASON = 200


def check_ray() -> None:
    """Raise MissingLibraryError when Ray is not installed."""
    if find_spec("ray") is None:
        raise MissingLibraryError("Ray", "ray")


class Place(NamedTuple):
    """The part of the cluster in which a run may train."""

    on_gpu: bool
    # Host memory, None: any.
    memory_bytes: int | None = None
    # One of these nodes, None: any.
    node_ids: Sequence[str] | None = None


class RayCluster:
    """The cluster at RAY_ADDRESS, else the one that runs on this machine."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Connect. Raises MissingLibraryError, and StepscopeError when there is no cluster."""
        check_ray()
        import ray

        self._ray = ray
        try:
            ray.init(
                address=environ.get(_ADDRESS_VARIABLE) or "auto",
                log_to_driver=False,
                ignore_reinit_error=True,
                logging_level="error",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise StepscopeError(_NOT_THERE.format(reason)) from None

    @property
    def has_gpus(self) -> bool:
        """True when a node has a GPU."""
        return bool(self._ray.cluster_resources().get("GPU"))

    def gpu_nodes(self) -> list[GpuNode]:
        """Return the nodes with GPUs, and how large these are, from a task on each."""
        nodes = [node for node in self._nodes() if node["Resources"].get("GPU")]
        measure = self._ray.remote(smallest_gpu)
        tasks = [
            measure.options(num_cpus=0, scheduling_strategy=self._only_on([node["NodeID"]])).remote()
            for node in nodes
        ]
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_SIZES_S)
        return [GpuNode(node["NodeID"], self._size(task)) for node, task in zip(nodes, tasks, strict=True)]

    def _size(self, task: Any) -> GpuSize | None:
        """Return the answer of a node; None: it has given none, so that its GPUs are not known."""
        try:
            size: GpuSize | None = self._ray.get(task, timeout=0.0)
        except self._ray.exceptions.RayError:
            return None
        return size

    def nodes_of(self, host: str) -> list[str]:
        """Return the ids of the nodes on the machine `host`."""
        return [node["NodeID"] for node in self._nodes() if node["NodeManagerHostname"] == host]

    def start(self, request: NodeRequest, place: Place) -> "RayNode":
        """Start a run on a node with a free device."""
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1} if place.on_gpu else {"num_cpus": self._cpus}
        if place.memory_bytes is not None:
            options["memory"] = place.memory_bytes
        if place.node_ids is not None:
            options["scheduling_strategy"] = self._only_on(place.node_ids)
        actor = self._ray.remote(_Actor).options(**options, max_restarts=0)
        return RayNode(self._ray, actor.remote(request))

    def _only_on(self, node_ids: Sequence[str]) -> Any:
        """Return Ray's strategy for an actor that waits for one of these nodes."""
        from ray.util.scheduling_strategies import In, NodeLabelSchedulingStrategy

        return NodeLabelSchedulingStrategy({_NODE_ID_LABEL: In(*node_ids)})

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    @property
    def _cpus(self) -> float:
        """The CPUs of the smallest node that has any: a run on the CPU takes a whole node."""
        counts = [node["Resources"].get("CPU", 0.0) for node in self._nodes()]
        return min((count for count in counts if count), default=1.0)


class RayNode:
    """A run in an actor of the cluster, `harness.remote.protocol.RemoteNode`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._pending: Any = None
        self._has_answered = False

    def pull(self, request: Pull, timeout_s: float) -> News:
        """Return the news. An answer that comes late is the answer of the next call."""
        if self._pending is None:
            self._pending = self._actor.pull.remote(request)
        try:
            news: News = self._ray.get(self._pending, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            raise NodeSilentError("The node has not answered yet.") from None
        except self._ray.exceptions.ActorUnavailableError:
            self._pending = None  # A connection that broke; that the node has died comes with the next call.
            raise NodeSilentError("The connection to the node broke.") from None
        except self._ray.exceptions.RayActorError as error:
            raise NodeLostError(_reason(error)) from None
        except self._ray.exceptions.RayTaskError as error:
            raise StepscopeError(str(error.cause)) from None
        self._pending, self._has_answered = None, True
        return news

    def signal(self, number: int) -> None:
        """Send a signal to the training process."""
        try:
            self._ray.get(self._actor.signal.remote(number), timeout=_CLOSE_S)
        except (self._ray.exceptions.GetTimeoutError, self._ray.exceptions.ActorUnavailableError):
            return  # A stop escalates, and sends the next one.
        except self._ray.exceptions.RayActorError as error:
            raise NodeLostError(_reason(error)) from None

    def close(self) -> None:
        """End the training and the actor. Idempotent."""
        if self._has_answered:  # Else it may still wait for a node.
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(self._actor.close.remote(), timeout=_CLOSE_S)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


class _Actor:
    """The node's side as an actor."""

    def __init__(self, request: NodeRequest) -> None:
        self._run = NodeRun(request, node_home(os.environ))

    def pull(self, request: Pull) -> News:
        return self._run.pull(request)

    def signal(self, number: int) -> None:
        self._run.signal(number)

    def close(self) -> None:
        self._run.close()


def _reason(error: Exception) -> str:
    """Return why an actor has died, from the paragraphs of Ray's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if line.startswith("The actor is dead because")), None)
    text = cause or next(iter(lines), type(error).__name__)
    return text.partition(". ")[0].rstrip(".")[:_LONGEST_REASON]
