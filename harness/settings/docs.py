"""The page docs/settings.md, from the declarations: `python -m harness.settings.docs` prints it."""

from collections.abc import Iterator

from harness.records.run import DeviceKind
from harness.settings.declaration import Group
from harness.settings.spec import SPECS, SettingSpec, value_text

_HEAD = """# Settings

Made by `make docs` from `harness/settings/`; a test holds the two equal.

A flag takes precedence over its environment variable, then the model's preset, then the default. A setting
that takes effect on a *new run* is fixed for a run; all others can change in a live run, in the browser and
with `stepscope set RUN name=value`.
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(line for group in Group for line in _table(group))])


def _table(group: Group) -> Iterator[str]:
    yield f"## {group.value}\n"
    yield "| setting | values | default | takes effect | devices | description |"
    yield "|---|---|---|---|---|---|"
    yield from (_row(spec) for spec in SPECS.values() if spec.group is group)
    yield ""


def _row(spec: SettingSpec) -> str:
    devices = "all" if spec.devices == frozenset(DeviceKind) else ", ".join(sorted(spec.devices))
    cells = (
        f"`{spec.flag}`<br>`{spec.variable}`",
        spec.bounds,
        value_text(spec, spec.default),
        spec.effect.value,
        devices,
        spec.help,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(markdown(), end="")
