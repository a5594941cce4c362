"""Events of a trace: the birth and death of each storage, and the phases they are in."""

from typing import NamedTuple

from torch import UntypedStorage
from torch._ops import OpOverload

# Of memory that grows during a phase.
_PARTS = 16


class Birth(NamedTuple):
    """The origin of a storage: the index of the phase in `Trace.phases`, and the path of the module during
    whose forward pass it was allocated; None outside of one."""

    size_bytes: int
    phase: int
    module: str | None


class PhaseStart(NamedTuple):
    """A phase begins at `event`, an index into `Trace.events`."""

    name: str
    event: int


class StorageLog:
    """Records the events of the storage watch, and the phases.

    Attributes:
        births: by the storage's number.
        events: as `harness.predict.tracing.Trace.events`.
        phases: in order.
        modules: the paths of the modules that are executing, outermost first.
    """

    def __init__(self) -> None:
        self.births: list[Birth] = []
        self.events: list[int] = []
        self.phases = [PhaseStart("building", 0)]
        self.modules: list[str] = []

    def born(self, _storage: UntypedStorage | None, size_bytes: int, _function: OpOverload | None) -> int:
        """Add the birth of a storage, or of other memory; return its number."""
        number = len(self.births)
        module = self.modules[-1] if self.modules else None
        self.births.append(Birth(size_bytes, len(self.phases) - 1, module))
        self.events.append(number)
        return number

    def died(self, number: int) -> None:
        """Add the death of the storage with this number."""
        self.events.append(~number)

    @property
    def is_building(self) -> bool:
        """True before the first step."""
        return len(self.phases) == 1

    def spread(self, size_bytes: int) -> list[int]:
        """Add memory that grew evenly during the current phase; return the numbers of its parts."""
        begin, end = self.phases[-1].event, len(self.events)
        numbers = [self.born(None, size_bytes // _PARTS, None) for _ in range(_PARTS)]
        del self.events[end:]
        for part, number in reversed(list(enumerate(numbers, start=1))):
            self.events.insert(begin + (end - begin) * part // _PARTS, number)
        return numbers

    def living(self) -> int:
        """Return the number of storages that have not died."""
        return 2 * len(self.births) - len(self.events)

    def begin(self, phase: str) -> None:
        """Begin a phase."""
        self.phases.append(PhaseStart(phase, len(self.events)))
