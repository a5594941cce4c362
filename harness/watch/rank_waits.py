"""The times in which a rank waits for the others, and for its communication with them: DDP on the CPU.

DDP's reducer starts the all-reduce of each bucket of gradients within the backward pass, and waits for all of
them in a callback at its end, which it queues with the last bucket. A hook on one parameter queues a callback
before that one: it runs when this rank's own gradients are computed. From there it queues another one, which
runs after the reducer's. So one hook suffices, whichever parameter's gradient comes last, and backward passes
that average nothing (`no_sync`) have a wait of microseconds.

The parameter is the first one: with reentrant activation checkpoints a backward pass runs in parts, each with
callbacks of its own, and the last part is the one in which the reducer waits. A step in which it has no
gradient has no measurement, nor has FSDP, whose ranks also wait within the backward pass for weights.

A model with buffers (of batch normalization) receives those of rank 0 at the begin of each forward pass, and
waits there for the ranks that begin it later.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor, is_grad_enabled, nn
from torch.autograd import Variable
from torch.compiler import disable
from torch.nn.parallel import DistributedDataParallel

from harness.watch.timing import StepTimer
from harness.watch.training import Replaced


class Waits(NamedTuple):
    """The waits of one step, in ns: at the end of its backward passes, and at the begin of its forward
    passes. None: not measured."""

    all_reduce_ns: int | None
    broadcast_ns: int | None


NO_WAITS = Waits(None, None)


class RankWaits:
    """Sums the waits of a step. Used on the training thread."""

    def __init__(self, timer: StepTimer) -> None:
        """Nothing is measured in steps that `timer` does not observe."""
        self._timer = timer
        self._clock_ns = timer.clock_ns
        self._models: WeakSet[nn.Module] = WeakSet()
        self._stack = ExitStack()
        replaced = Replaced(DistributedDataParallel, "_sync_buffers", self._wrap_broadcast)
        self._stack.callback(replaced.remove)
        self._began_ns = 0
        self._all_reduce_ns: int | None = None
        self._broadcast_ns = 0

    def follow(self, model: nn.Module) -> None:
        """Measure in the backward passes of `model`, which is replicated by DDP, from now on. Idempotent."""
        weight = next((weight for weight in model.parameters() if weight.requires_grad), None)
        if weight is not None and model not in self._models:
            self._models.add(model)
            self._stack.callback(weight.register_post_accumulate_grad_hook(self._accumulated).remove)

    def take(self) -> Waits:
        """Return the waits since the last call."""
        all_reduce_ns, broadcast_ns = self._all_reduce_ns, self._broadcast_ns
        self._all_reduce_ns, self._broadcast_ns, self._began_ns = None, 0, 0
        return NO_WAITS if all_reduce_ns is None else Waits(all_reduce_ns, broadcast_ns)

    def close(self) -> None:
        """Remove the hooks. Idempotent."""
        self._stack.close()

    def _accumulated(self, _weight: Tensor) -> None:
        if self._timer.is_observing:
            _queue(self._computed)

    def _computed(self) -> None:
        """This rank's own gradients are computed."""
        if not self._began_ns:  # Another model may have begun the same wait.
            self._began_ns = self._clock_ns()
            _queue(self._reduced)

    def _reduced(self) -> None:
        self._all_reduce_ns = (self._all_reduce_ns or 0) + self._clock_ns() - self._began_ns
        self._began_ns = 0

    def _wrap_broadcast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def sync_buffers(replica: nn.Module) -> Any:
            if not self._timer.is_observing or not is_grad_enabled():
                return original(replica)
            began_ns = self._clock_ns()
            result = original(replica)
            self._broadcast_ns += self._clock_ns() - began_ns
            return result

        # torch.compile would trace it, unlike the functions of DDP. Whoever has DDP has loaded the compiler.
        untraced: Callable[..., Any] = disable(sync_buffers)
        return untraced


def _queue(callback: Callable[[], None]) -> None:
    """Call `callback` at the end of the backward pass under way."""
    Variable._execution_engine.queue_callback(callback)
