"""Tracking of allocations while a snapshot is in progress or `memory_history` is on."""

from harness.device.cuda.allocator import has_blocks
from harness.device.cuda.cublas import workspace_bytes
from harness.records.memory import AllocationRow
from harness.tracking.blocks import TrackingResult, summarize
from harness.tracking.history import AllocatorHistory, CudaHistory, HistoryTracker
from harness.tracking.owners import OwnedSize
from harness.tracking.retained_graphs import RetainedGraphs
from harness.tracking.tensor_tracker import TensorTracker
from harness.watch.capture.following import AllocationFollower, FollowedStep
from harness.watch.context import RunContext
from harness.watch.training import Training

_NO_HISTORY = (
    "Only torch's own caching allocator has a history of allocations; this process has another one "
    "(PYTORCH_ALLOC_CONF=backend:cudaMallocAsync, or one of the script's), or none "
    "(PYTORCH_NO_CUDA_MEMORY_CACHING)."
)
_OWN_HISTORY = (
    "The script records the allocator's history itself (torch.cuda.memory._record_memory_history), and "
    "tracking would end its record; take the snapshot with torch.cuda.memory._dump_snapshot."
)
_COMPILED = "Allocations of compiled code cannot be tracked on the CPU; train without torch.compile."
_HAS_COMPILED = (
    "Allocations of compiled code cannot be tracked on the CPU, and torch.compile was called in this "
    "process; train without it."
)


class Tracker:
    """Used on the training thread, except `live_allocations`.

    On a GPU it reads the caching allocator's history, elsewhere it tracks tensors.
    """

    def __init__(
        self, context: RunContext, training: Training, history: AllocatorHistory | None = None
    ) -> None:
        """`history` is CUDA's; tests pass a fake."""
        self._training = training
        self._device = device = context.device
        self._guarded = context.guard.run
        self._history = history or (CudaHistory() if device.torch_device.type == "cuda" else None)
        self._on: tuple[AllocationFollower, FollowedStep] | None = None

    @property
    def method(self) -> str:
        """The method of tracking, in words."""
        if self._history is None:
            return "tensors, tracked from allocation to free"
        return "the caching allocator's history"

    @property
    def sees_all(self) -> bool:
        """Return whether it tracks every allocation."""
        return self._history is not None

    @property
    def refusal(self) -> str | None:
        """The reason that nothing can be tracked: an allocator that has no history, a history that the script
        records, or compiled code on the CPU; None: it can. Within the mode that tracks tensors torch.compile
        compiles no function, and one with `fullgraph=True` raises an error, from then on without the mode
        too."""
        if self._history is not None:
            if not has_blocks():
                return _NO_HISTORY
            return _OWN_HISTORY if self._history.is_foreign() else None
        if self._training.settings.compile:
            return _COMPILED
        return _HAS_COMPILED if self._training.has_compiled else None

    @property
    def is_attached(self) -> bool:
        """Return whether the next step is tracked: a change of settings ends tracking."""
        return self._on is not None and self._on[1].is_attached

    @property
    def sizes(self) -> list[OwnedSize]:
        """Return the memory of the model and its optimizer in the step after `begin_window`."""
        return [] if self._on is None else self._on[1].sizes

    def follow_setting(self) -> str | None:
        """Track allocations permanently if `memory_history` is on, otherwise stop; return the reason that the
        setting has no effect, None where it has."""
        is_on = self._training.settings.memory_history
        refusal = self.refusal if is_on else None
        if is_on and refusal is None:
            self._attach()
        else:
            self.stop()
        return refusal

    def begin_window(self) -> int:
        """Track from the next step on; return the bytes of known live tensors."""
        follower, following, there_bytes = self._attach()
        follower.begin_window()
        following.graphs.begin()
        following.count_next()
        return there_bytes

    def begin_step(self) -> None:
        """Note the start of a tracked step."""
        if self._on is not None:
            self._on[0].begin_step()

    def end_step(self) -> None:
        """Note the end of a tracked step."""
        if self._on is not None:
            self._on[0].end_step()

    def end_window(self, *, is_hunt: bool) -> TrackingResult:
        """Return the result of the steps since `begin_window`. In the hunt for a leak also the graphs that
        results of the steps keep are searched for."""
        assert self._on is not None, "a window is open"
        follower, following = self._on
        graphs: list[RetainedGraphs | None] = [None, None]

        def find_graphs() -> None:
            graphs[0] = following.graphs.retained(follower.site_of)
            if is_hunt and graphs[0] is None:
                graphs[1] = following.graphs.of_results(follower.site_of)

        self._guarded("following graphs", find_graphs)
        return follower.end_window()._replace(graphs=graphs[0], graphs_of_results=graphs[1])

    def stop(self) -> None:
        """Stop tracking. Idempotent."""
        if self._on is not None:
            (follower, following), self._on = self._on, None
            following.detach()
            self._guarded("end of following", follower.stop)

    def live_allocations(self) -> list[AllocationRow]:
        """Return the live allocations by site, the largest first; empty without tracking. From any
        thread."""
        on = self._on
        return [] if on is None else summarize(0, on[0].live(), None).rows

    def _attach(self) -> tuple[AllocationFollower, FollowedStep, int]:
        if self._on is None:
            follower = self._make()
            following = FollowedStep(self._training, follower, self._guarded, self._device.torch_device)
            self._on = (follower, following)
            return follower, following, following.attach()
        follower, following = self._on
        if not following.is_attached:
            following.reattach()
        return follower, following, 0 if self.sees_all else sum(b.size_bytes for b in follower.live())

    def _make(self) -> AllocationFollower:
        if self._history is None:
            return TensorTracker(self._training.model, self._guarded)
        index, hooked = self._device.facts.ordinal or 0, not self._training.settings.compile
        capability = self._device.facts.capability  # None: the GPU is not NVIDIA's.
        size = None if capability is None else workspace_bytes(capability)
        return HistoryTracker(self._training.model, index, self._history, hooked, workspace_bytes=size)
