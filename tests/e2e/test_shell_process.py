"""The shell's processes: the descriptors they begin with, and a run that is refused late."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.store.home import Home

ROOT = Path(__file__).parents[2]


def shell(line: str) -> tuple[int, str]:
    """Carry out a line of bash in which `$S` is the command; the code and what was printed anywhere."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env=os.environ | {"S": f"{sys.executable} -m harness"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_no_file_is_opened_on_a_closed_standard_descriptor() -> None:
    script = (
        "import harness.__main__ as entry, os, sys; entry.reopen_closed_streams(); "
        "file = open(os.devnull); assert file.fileno() > 2, file.fileno(); sys.exit(42)"
    )
    line = f'{sys.executable} -c "{script}"'
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(f"{line} {closed}") == (42, "")


@pytest.mark.long
def test_what_only_torch_can_refuse_leaves_no_run_either(tmp_path: Path) -> None:
    line = f"$S run mlp --device cpu --amp fp16 --home {tmp_path}"
    code, printed = shell(line)
    assert code == 2
    assert "it supports: off, bf16" in printed
    assert Home(tmp_path).runs() == []


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", pytest.param("2>/dev/full", marks=pytest.mark.long)])
def test_a_script_runs_whatever_its_standard_streams_are(tmp_path: Path, redirection: str) -> None:
    script, seen = tmp_path / "train.py", tmp_path / "seen"
    script.write_text(
        "import sys\n"
        "print('step 1')\n"
        f"open({str(seen)!r}, 'w').write(repr([stream is None for stream in (sys.stdin, sys.stdout)]))\n"
        "sys.exit(3)\n"
    )

    def result(command: str) -> tuple[int, str, str]:
        seen.unlink(missing_ok=True)
        return *shell(f"{command} {script} {redirection}"), seen.read_text()

    bare = result(sys.executable)
    assert bare[0] == 3
    assert result(f"$S run --home {tmp_path}") == bare
