"""The page "Your own training": its examples run, and its list of the interface is complete."""

import re
from pathlib import Path

import pytest

import stepscope
from harness.records.run import RunState
from harness.store.home import Home
from harness.store.reader import LogReader

_PAGE = Path(__file__).parents[2] / "docs" / "your-own-training.md"
_SUBJECTS = {stepscope.Run: "run", stepscope.SummaryWriter: "writer", stepscope.Setting: "setting"}


def _blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_every_example_runs_and_records_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in _blocks():
        exec(compile(block, _PAGE.name, "exec"), namespace)
    outcomes = []
    for folder in reversed(Home(tmp_path / "home").runs()):
        with LogReader(folder.log) as log:
            outcomes.append((log.run().state, len(log.last_steps(100))))
    assert outcomes == [(RunState.FINISHED, steps) for steps in (8, 8, 0, 8, 3, 8)]


@pytest.mark.parametrize("kind", _SUBJECTS)
def test_every_public_member_is_listed(kind: type) -> None:
    interface = _PAGE.read_text(encoding="utf-8").split("## The interface")[1]
    members = [name for name in dir(kind) if not name.startswith("_")]
    assert members or kind is stepscope.Setting
    assert [name for name in members if f"`{_SUBJECTS[kind]}.{name}" not in interface] == []


def test_every_public_name_is_listed() -> None:
    interface = _PAGE.read_text(encoding="utf-8").split("## The interface")[1]
    assert sorted(set(re.findall(r"`stepscope\.(\w+)", interface)) - {"integrations"}) == stepscope.__all__
