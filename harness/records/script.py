"""Rows of a run that trains a person's own script."""

import json
import math
from enum import StrEnum
from pathlib import PurePath
from typing import NamedTuple

from harness.files.plain_json import json_object

SettingValue = bool | int | float | str

# The duration of a script's own phase is a scalar of this name and its own, in milliseconds per step.
PHASE_PREFIX = "phase/"


class ScriptOrigin(NamedTuple):
    """The command of a script's run, and where it was started."""

    # As typed: "train.py", or "-m package.train".
    command: str
    # The arguments of the script.
    arguments: tuple[str, ...]
    # The working folder.
    folder: str
    # The Python interpreter.
    python: str
    # The commit of the script's git repository, and whether tracked files differ from it; None outside one.
    git_commit: str | None
    git_is_dirty: bool | None

    @property
    def short_command(self) -> str:
        """The command without the folder of the script: "train.py"."""
        return self.command if self.command.startswith("-m ") else PurePath(self.command).name


class ScalarRow(NamedTuple):
    """A number that the script logged, encoded by `harness.records.floats`."""

    step: int
    name: str
    t_ns: int
    value: float | None
    value_state: int | None


class DeclaredSettingRow(NamedTuple):
    """A setting that the script declared for itself; `declaration` is a `DeclaredSetting` as JSON."""

    name: str
    declaration: str


class UnavailableSettingRow(NamedTuple):
    """A setting that the script cannot change, and why; an empty reason: it can by now."""

    name: str
    reason: str


class SettingKind(StrEnum):
    """The kinds of setting that a script can declare."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    CHOICE = "choice"


class DeclaredSetting(NamedTuple):
    """The declaration of a script's own setting. `low` and `high` bound a number, None: no bound; `choices`
    are the values of a choice."""

    name: str
    kind: SettingKind
    default: SettingValue
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    label: str

    @classmethod
    def from_row(cls, row: DeclaredSettingRow) -> "DeclaredSetting":
        """Return the declaration of a row. Raises ValueError for one that Stepscope did not write."""
        values = json_object(row.declaration)
        try:
            setting = cls(
                row.name,
                SettingKind(values["kind"]),
                values["default"],
                _bound(values["low"]),
                _bound(values["high"]),
                tuple(str(choice) for choice in values["choices"]),
                str(values["label"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"The setting {row.name!r} has an invalid declaration: {error}.") from None
        setting.check(setting.default)
        return setting

    def to_row(self) -> DeclaredSettingRow:
        """Return the row of this declaration."""
        values = self._asdict()
        del values["name"]
        return DeclaredSettingRow(self.name, json.dumps(values))

    def check(self, value: object) -> SettingValue:
        """Return `value` as this setting has it. Raises ValueError when the setting cannot have it."""
        match self.kind:
            case SettingKind.BOOL if isinstance(value, bool):
                return value
            case SettingKind.CHOICE if isinstance(value, str) and value in self.choices:
                return value
            case SettingKind.INT | SettingKind.FLOAT if self._is_number(value):
                assert isinstance(value, int | float)
                if (self.low is None or value >= self.low) and (self.high is None or value <= self.high):
                    return int(value) if self.kind is SettingKind.INT else float(value)
        raise ValueError(f"{self.name} cannot be {value!r}; it is {self.domain}.")

    def parse(self, text: str) -> SettingValue:
        """Return the value that `text` stands for. Raises ValueError as `check`."""
        words: dict[str, object] = {"true": True, "false": False, "on": True, "off": False}
        if self.kind is SettingKind.CHOICE:
            return self.check(text)
        if self.kind is SettingKind.BOOL:
            return self.check(words.get(text.lower(), text))
        try:
            return self.check(int(text) if self.kind is SettingKind.INT else float(text))
        except (ValueError, OverflowError):
            raise ValueError(f"{self.name} cannot be {text!r}; it is {self.domain}.") from None

    @property
    def domain(self) -> str:
        """The values of this setting, in words."""
        if self.kind is SettingKind.BOOL:
            return "true or false"
        if self.kind is SettingKind.CHOICE:
            return "one of " + ", ".join(self.choices)
        noun = "a whole number" if self.kind is SettingKind.INT else "a number"
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"{noun} of at least {self.low:g}"
        return noun if self.high is None else f"{noun} of at most {self.high:g}"

    def _is_number(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        try:
            if not math.isfinite(value):
                return False
        except OverflowError:  # A whole number that no float can hold.
            return False
        return self.kind is SettingKind.FLOAT or value == int(value)


def _bound(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no bound")
    return value
