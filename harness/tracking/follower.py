"""Follows every tensor of some steps on the CPU: who made it, when, and whether it is there still."""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, UntypedStorage, nn
from torch._ops import OpOverload

from harness.memory_records import MemoryCategory
from harness.records import Phase
from harness.tracking import frames
from harness.tracking.births import Birth, alive_at, fullest, grown, most_saved, to_block
from harness.tracking.blocks import Block, Followed, Guarded
from harness.tracking.frames import StackReader
from harness.tracking.modules import ModuleTrail
from harness.tracking.owners import Owned
from harness.tracking.storages import StorageWatch
from harness.tracking.traces import Action, TraceLog

# Blocks followed at a time.
MOST_LIVE = 200_000


class TensorFollower:
    """Follows tensors through a dispatch mode that is on within the phases of a step and off between them.

    Use: `start`, then for each step `begin_step`, the phases under `phase`, `end_step`; at last `stop`. Used
    on the training thread; tensors may die on any. Nothing in here breaks the step that is followed: what
    fails in `guarded` is left out.
    """

    def __init__(self, model: nn.Module, guarded: Guarded, most_live: int = MOST_LIVE) -> None:
        self._guarded = guarded
        self._most_live = most_live
        self._moments = itertools.count(1)
        self._watch: StorageWatch[Birth] = StorageWatch(self._born, self._died)
        self._stacks = StackReader()
        self._trail = ModuleTrail(model)
        self._live: dict[int, Birth] = {}
        self._phase: Phase | None = None
        self._step = 0
        self._missed = 0
        self._trace: TraceLog | None = None
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._births: list[Birth] = []
        self._deaths: list[Birth] = []
        self._peak_bytes = -1
        self._held: list[Block] = []
        self._activations: dict[str, int] = {}

    def start(self, owned: Iterable[Owned]) -> None:
        """Begin with what there is already, and whose it is."""
        self._trail.start()
        for tensor, owner in owned:
            birth = self._watch.adopt(tensor)
            if birth is not None and birth.owner is None:
                birth.owner = owner

    def begin_window(self) -> None:
        """From now on keep what `end_window` needs, beside what is alive."""
        self._step = 0
        self._forget_steps()
        self._trace = TraceLog(time.time_ns)

    def begin_step(self) -> None:
        """A step begins."""
        self._step += 1
        self._births.clear()
        self._deaths.clear()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Follow what is allocated within."""
        self._phase = phase
        if phase is Phase.DATA_WAIT:
            self._trail.begin_pass()
        first = len(self._births)
        with self._watch:
            yield
        if phase is Phase.FORWARD and self._trace is not None:
            self._forward_ended(first)

    def own(self, owned: Iterable[Owned]) -> None:
        """Say whose the tensors are that were made since."""
        for tensor, owner in owned:
            birth = self._watch.key_of(tensor)
            if birth is None:
                birth = self._watch.adopt(tensor)
                if birth is None:
                    continue
                birth.step = self._step
            is_input = owner.category is MemoryCategory.INPUTS
            is_open = birth.owner is None or birth.owner.category is MemoryCategory.UNKNOWN
            # What was seen being made as an input has a better name: its line.
            if is_open and not (is_input and birth.phase is not None):
                birth.owner = owner

    def end_step(self) -> None:
        """Keep this step's fullest moment when it is the fullest so far."""
        births = [birth for birth in list(self._births) if birth.is_counted]
        for birth in births:
            birth.outlived = birth.died is None
        every = list({id(b): b for b in (*self._live.values(), *self._deaths, *births)}.values())
        moment, most_bytes = fullest(every)
        if most_bytes > self._peak_bytes:
            self._peak_bytes = most_bytes
            self._held = [to_block(birth) for birth in alive_at(every, moment)]

    def end_window(self) -> Followed:
        """What the steps since `begin_window` gave."""
        live = list(self._live.values())
        kept = [to_block(birth) for birth in grown(live, self._step)]
        raw = None if self._trace is None else self._trace.snapshot(live)
        note = (
            ""
            if not self._missed
            else f"{self._missed:,} blocks beyond {self._most_live:,} were not followed."
        )
        if self._trace is not None and self._trace.note:
            note = f"{note} {self._trace.note}".strip()
        result = Followed(self._held, kept, dict(self._activations), raw, note)
        self._trace = None
        self._forget_steps()
        return result

    def site_of(self, tensor: Tensor) -> str | None:
        """The line that made a tensor; None where it was not followed."""
        birth = self._watch.key_of(tensor)
        return None if birth is None or not birth.stack else frames.site(birth.stack)

    def live(self) -> list[Block]:
        """What is alive now; from any thread."""
        return [to_block(birth) for birth in list(self._live.values())]

    def stop(self) -> None:
        """Follow nothing any more. Idempotent."""
        self._trail.stop()
        self._watch.forget()
        self._live.clear()
        self._trace = None
        self._forget_steps()

    def _born(self, storage: UntypedStorage, size_bytes: int, function: OpOverload | None) -> Birth:
        moment = next(self._moments)
        step = self._step if function is not None else 0
        birth = Birth(size_bytes, 0, moment, step, None if function is None else self._phase)
        if len(self._live) >= self._most_live:
            self._missed += 1
            birth.is_counted = False
            return birth
        self._live[id(birth)] = birth
        self._guarded("following tensors", lambda: self._describe(birth, storage, function))
        return birth

    def _describe(self, birth: Birth, storage: UntypedStorage, function: OpOverload | None) -> None:
        birth.address = storage.data_ptr()
        if function is None:
            return
        birth.stack = self._stacks.read()
        birth.module = self._trail.current()
        birth.is_inside = self._trail.is_inside()
        if self._trace is not None:
            self._births.append(birth)
            self._trace.add(Action.ALLOC, birth.address, birth.size_bytes, birth.stack)

    def _died(self, birth: Birth) -> None:
        birth.died = next(self._moments)
        if not birth.is_counted:
            return
        self._live.pop(id(birth), None)
        if self._trace is not None:
            self._deaths.append(birth)
            self._trace.add(Action.FREE, birth.address, birth.size_bytes, birth.stack)

    def _forward_ended(self, first: int) -> None:
        births = self._births[first:]
        for birth in births:
            birth.saved = birth.died is None
        for path, size_bytes in most_saved([births]).items():
            self._activations[path] = max(self._activations.get(path, 0), size_bytes)
