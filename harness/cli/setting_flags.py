"""A flag for every setting: its name and values are derived from the setting's declaration."""

import argparse

from harness.settings.spec import SPECS, SettingSpec, ValueKind


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting, in its group."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for spec in SPECS.values():
        group = groups.setdefault(spec.group, parser.add_argument_group(spec.group.value))
        text = _help(spec).replace("%", "%%")
        if spec.kind is ValueKind.BOOL:
            negative = spec.negative_flag
            group.add_argument(spec.flag, dest=spec.name, action="store_const", const="on", help=text)
            group.add_argument(
                negative, dest=spec.name, action="store_const", const="off", help=argparse.SUPPRESS
            )
        else:
            group.add_argument(spec.flag, dest=spec.name, metavar=_metavar(spec), help=text)


def _metavar(spec: SettingSpec) -> str:
    if spec.choices:
        return "{" + ",".join(spec.choices) + "}"
    return {ValueKind.INT: "N", ValueKind.FLOAT: "X"}.get(spec.kind, "TEXT")


def _help(spec: SettingSpec) -> str:
    notes = []
    if spec.kind is ValueKind.BOOL:
        notes.append(f"{spec.negative_flag} turns it off")
    if spec.unit:
        notes.append(f"in {spec.unit}")
    if spec.default is not None:
        default = ("on" if spec.default else "off") if spec.kind is ValueKind.BOOL else spec.default
        notes.append(f"default {default}")
    return f"{spec.help} ({'; '.join(notes)})" if notes else spec.help
