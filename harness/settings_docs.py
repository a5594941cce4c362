"""The page docs/settings.md, from the declarations: `python -m harness.settings_docs` prints it."""

from collections.abc import Iterator

from harness.config import SPECS, SettingSpec, value_text
from harness.records import DeviceKind
from harness.setting import Group

_HEAD = """# Settings

Made by `make docs` from `harness/settings/`; a test holds the two equal.

A flag counts before its environment variable, that before the model's preset, that before the default. What
takes effect on a *new run* cannot change while a run goes on; everything else can, in the browser and with
`stepscope set RUN name=value`.
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(line for group in Group for line in _table(group))])


def _table(group: Group) -> Iterator[str]:
    yield f"## {group.value}\n"
    yield "| setting | values | default | takes effect | devices | what it does |"
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
