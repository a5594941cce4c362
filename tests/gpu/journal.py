"""The results of `make gpu-check` on disk: one file of JSON lines per card and day, which only grows.

Each line is written as soon as its figure is known, by the process that measured it, so that a crash loses
nothing but the item under way. A later call reads the file and continues.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class StageState(StrEnum):
    """Outcomes of a stage."""

    FINISHED = "finished"
    UNFINISHED = "unfinished"
    """Its time was over; the next call continues."""
    DIED = "died"
    """Its process crashed, or raised an error, outside of any item."""


@dataclass
class StageResults:
    """The results of one stage. `values` and `failures` are by item; `open_items` began and did not end."""

    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    open_items: list[str] = field(default_factory=list)
    state: StageState | None = None
    """None: the stage never ran."""
    reason: str = ""
    seconds: float = 0.0
    """All calls together."""

    @property
    def open_item(self) -> str | None:
        """The item that began last and did not end."""
        return self.open_items[-1] if self.open_items else None

    @property
    def done(self) -> set[str]:
        """The items that are not measured again: with a value, or whose process died of them."""
        return {*self.values, *self.failures}

    def begin(self, item: str) -> None:
        """An item begins, perhaps anew."""
        self.end(item)
        self.open_items.append(item)

    def end(self, item: str) -> None:
        """An item has ended."""
        if item in self.open_items:
            self.open_items.remove(item)


@dataclass
class Results:
    """The whole file: one session per call, and the results by stage."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    stages: dict[str, StageResults] = field(default_factory=dict)

    def stage(self, key: str) -> StageResults:
        """The results of a stage; empty when it never ran."""
        return self.stages.get(key, StageResults())


class ResultsFile:
    """Appends lines to a file of results; several processes may write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def session(self, facts: Mapping[str, Any]) -> None:
        """A call begins on the machine that `facts` describe."""
        self._append({"session": dict(facts)})

    def restart(self, stage: str) -> None:
        """Forget the stage's earlier results."""
        self._append({"stage": stage, "restart": True})

    def forget(self, stage: str, items: Sequence[str]) -> None:
        """Forget these items of a stage, which the next call measures anew."""
        self._append({"stage": stage, "forget": list(items)})

    def begin(self, stage: str, item: str) -> None:
        """An item begins: if the process dies now, it died of this one."""
        self._append({"stage": stage, "begin": item})

    def value(self, stage: str, item: str, value: object) -> None:
        """An item's result."""
        self._append({"stage": stage, "item": item, "value": value})

    def failure(self, stage: str, item: str, reason: str) -> None:
        """An item that ended its process."""
        self._append({"stage": stage, "item": item, "died": reason})

    def state(self, stage: str, state: StageState, reason: str, seconds: float) -> None:
        """Return how a stage ended, after so many seconds of this call."""
        self._append({"stage": stage, "state": state, "reason": reason, "seconds": round(seconds, 1)})

    def read(self) -> Results:
        """All results. A last line that was cut short by a crash is left out."""
        results = Results()
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    _take(json.loads(line), results)
                except json.JSONDecodeError:
                    continue
        return results

    def _append(self, row: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # In one write, since several processes may append. The leading line break ends a line that a crash
        # cut short.
        with self.path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            is_cut = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * is_cut + json.dumps(row).encode() + b"\n")


def _take(row: Mapping[str, Any], results: Results) -> None:
    if "session" in row:
        results.sessions.append(row["session"])
        return
    key = row["stage"]
    if "restart" in row:
        results.stages[key] = StageResults()
        return
    stage = results.stages.setdefault(key, StageResults())
    if "forget" in row:
        for item in row["forget"]:
            stage.values.pop(item, None)
            stage.failures.pop(item, None)
        stage.state, stage.reason = StageState.UNFINISHED, "to be run anew"
    elif "begin" in row:
        stage.begin(row["begin"])
    elif "state" in row:
        stage.state, stage.reason = StageState(row["state"]), row["reason"]
        stage.seconds += row["seconds"]
        stage.open_items.clear()
    elif "died" in row:
        stage.failures[row["item"]] = row["died"]
        stage.end(row["item"])
    else:
        stage.values[row["item"]] = row["value"]
        stage.failures.pop(row["item"], None)
        stage.end(row["item"])
