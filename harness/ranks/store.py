"""Proposals to all ranks of a run, and their answers, in torchrun's key-value store.

No collective is involved: a rank that is late, or has ended, delays nobody for longer than a given time.
"""

import json
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Self

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from harness.errors import UsageError
from harness.ranks.place import ADDRESS, PORT
from harness.records.ranks import RankPlace
from harness.records.run import CommandRow
from harness.store.folder import RunFolder

_PREFIX = "stepscope"
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_TIMEOUT = timedelta(seconds=10)
# Time for the first rank of a machine to start.
_FOLDER_TIMEOUT = timedelta(seconds=120)
_NONE = ""
_GROUP = "group"
_SILENT = "it has not answered."


class Proposal(NamedTuple):
    """A command for all ranks. `attempt` counts from 0 the proposals of the same command."""

    number: int
    attempt: int
    command: CommandRow


class Decision(NamedTuple):
    """The step before which all ranks carry out a proposal; None: none does, because `missing` ranks have not
    answered."""

    step: int | None
    missing: tuple[int, ...] = ()


class RankStore:
    """The proposals of one run, seen from one rank. Thread-safe, as torch's stores are. Every method raises
    RuntimeError (torch's DistError) when the store has ended."""

    def __init__(self, store: Store, place: RankPlace) -> None:
        self._store = PrefixStore(_PREFIX, store)
        self.place = place

    @classmethod
    def connect(cls, environ: Mapping[str, str], place: RankPlace) -> Self:
        """Connect to the store of torchrun, which has keys of its own for each restart of the ranks."""
        store = TCPStore(environ[ADDRESS], int(environ[PORT]), timeout=_TIMEOUT)
        return cls(PrefixStore(f"restart-{environ.get(_RESTARTS, 0)}", store), place)

    def group_id(self) -> str | None:
        """Return the id that the runs of all machines have in common; None if there is one machine."""
        if not self.place.is_on_several_machines:
            return None
        self._store.compare_set(_GROUP, _NONE, uuid.uuid4().hex)  # The first one stands.
        return self._store.get(_GROUP).decode()

    def share_folder(self, folder: RunFolder) -> None:
        """Name the folder of this machine's ranks to them; from the first of them."""
        self._store.set(self._folder_key(), str(folder.path))

    def shared_folder(self) -> RunFolder:
        """Wait for the folder that the first rank of this machine names, and return that of this rank. Raises
        UsageError when it is not there."""
        key = self._folder_key()
        self._store.wait([key], _FOLDER_TIMEOUT)
        path = Path(self._store.get(key).decode())
        if not path.is_dir():
            raise UsageError(
                f"Rank {self.place.rank} cannot see the folder of the run, {path}, which rank "
                f"{self.place.first_rank} has named: they are not on one machine."
            )
        return RunFolder(path, self.place.local_rank)

    def propose(self, command: CommandRow, attempt: int = 0) -> None:
        """Propose a command to all ranks."""
        number = self._store.add("proposals", 1)
        self._store.set(f"proposal-{number}", json.dumps([attempt, *command]))

    def proposal(self, number: int) -> Proposal | None:
        """Return the proposal of this number, from 1 on; None: there is none yet."""
        key = f"proposal-{number}"
        if not self._store.check([key]):
            return None
        attempt, *command = json.loads(self._store.get(key))
        return Proposal(number, attempt, CommandRow(*command))

    def answer(self, number: int, horizon: int) -> None:
        """Promise not to begin the step `horizon` before there is a decision."""
        self._store.set(self._answer_key(number, self.place.rank), str(horizon))

    def decision(self, number: int) -> Decision | None:
        """Return the decision on a proposal; None: some rank has not answered yet."""
        if (decided := self._decided(number)) is not None:
            return decided
        keys = [self._answer_key(number, rank) for rank in range(self.place.size)]
        if not self._store.check(keys):
            return None
        horizons = [int(self._store.get(key)) for key in keys]
        return self._decide(number, Decision(max(horizons)))

    def give_up(self, number: int) -> Decision:
        """Decide that no rank carries out the proposal, unless there is a decision already; return it."""
        ranks = range(self.place.size)
        missing = [rank for rank in ranks if not self._store.check([self._answer_key(number, rank)])]
        return self._decide(number, Decision(None, tuple(missing)))

    def _decide(self, number: int, decision: Decision) -> Decision:
        # The first decision stands, whoever makes it.
        self._store.compare_set(f"decision-{number}", _NONE, json.dumps(decision))
        decided = self._decided(number)
        if decided is None:
            raise RuntimeError(f"the store has lost the decision on proposal {number}")
        return decided

    def _decided(self, number: int) -> Decision | None:
        key = f"decision-{number}"
        if not self._store.check([key]):
            return None
        step, missing = json.loads(self._store.get(key))
        return Decision(step, tuple(missing))

    def report(self, command_id: str, problem: str | None) -> None:
        """Say that a change is in effect on this rank, or why it is not."""
        self._store.set(self._report_key(command_id, self.place.rank), json.dumps(problem))

    def problems(self, command_id: str) -> dict[int, str] | None:
        """Return why a change is not in effect, by rank, as settled for all; None: some rank has not reported
        yet."""
        if (settled := self._settled(command_id)) is not None:
            return settled
        ranks = range(self.place.size)
        keys = [self._report_key(command_id, rank) for rank in ranks]
        if not self._store.check(keys):
            return None
        reports = {rank: json.loads(self._store.get(key)) for rank, key in zip(ranks, keys, strict=True)}
        return self._settle(command_id, {rank: text for rank, text in reports.items() if text is not None})

    def settle_without(self, command_id: str) -> dict[int, str]:
        """Like `problems`, where ranks that have not reported are the problem."""
        ranks = range(self.place.size)
        missing = [rank for rank in ranks if not self._store.check([self._report_key(command_id, rank)])]
        return self._settle(command_id, dict.fromkeys(missing, _SILENT))

    def _settle(self, command_id: str, problems: Mapping[int, str]) -> dict[int, str]:
        # What is settled first stands, whoever does it.
        self._store.compare_set(f"settled-{command_id}", _NONE, json.dumps(list(problems.items())))
        settled = self._settled(command_id)
        if settled is None:
            raise RuntimeError(f"the store has lost what was settled on {command_id}")
        return settled

    def _settled(self, command_id: str) -> dict[int, str] | None:
        key = f"settled-{command_id}"
        return dict(json.loads(self._store.get(key))) if self._store.check([key]) else None

    @staticmethod
    def _report_key(command_id: str, rank: int) -> str:
        return f"report-{command_id}-{rank}"

    def _folder_key(self) -> str:
        return f"folder-{self.place.first_rank}"

    @staticmethod
    def _answer_key(number: int, rank: int) -> str:
        return f"answer-{number}-{rank}"
