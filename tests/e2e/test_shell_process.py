"""The shell's processes on broken streams and under Ctrl-C: one sentence or none, never a traceback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.store.home import Home
from tests.supervision import until

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "harness"]


def shell(line: str, unbuffered: bool) -> tuple[int, str]:
    """Carry out a line of bash in which `$S` is the command; the code and what was printed anywhere."""
    environ = os.environ | {"S": " ".join(COMMAND), "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


FULL = "stepscope: The output could not be written: no space left on device.\n"
CLOSED = "stepscope: The output could not be written: bad file descriptor.\n"


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("$S settings >/dev/full", 1, FULL),
        ("$S --version >/dev/full", 1, FULL),
        ("$S settings <&- >&-", 1, CLOSED),
        ("$S settings <&- >&- 2>&-", 1, ""),
        ("$S lst 2>&-", 2, ""),
        ("$S show nobody 2>/dev/full", 2, ""),
        ("$S settings | head -c 4", 0, "FLAG"),
    ],
)
def test_a_stream_that_cannot_be_written_gets_one_sentence(
    line: str, code: int, printed: str, unbuffered: bool
) -> None:
    assert shell(line, unbuffered) == (code, printed)


@pytest.mark.slow
def test_no_file_is_opened_on_a_closed_standard_descriptor() -> None:
    script = (
        "import harness.__main__ as entry, os, sys; entry.reopen_closed_streams(); "
        "file = open(os.devnull); assert file.fileno() > 2, file.fileno(); sys.exit(42)"
    )
    line = f'{sys.executable} -c "{script}"'
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(f"{line} {closed}", unbuffered=False) == (42, "")


def interrupted(words: Sequence[str], after_s: float) -> tuple[int, str]:
    """Start a command, interrupt it that long after its handler is in place, and see how it ends."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell in the background has its children ignore would be ignored here, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The first 20 ms are Python's own, with a handler of its own.
    until(lambda: _imports(process.pid), bool)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def _imports(pid: int) -> bool:
    """Whether the process has begun to import the commands: an extension of theirs is mapped."""
    return "_pydantic_core" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["demo", "steady", "--steps", "2000000"], ["doctor"], ["predict", "mlp"]])
def test_an_interrupt_ends_a_command_quietly_with_130(words: list[str]) -> None:
    for after_s in (0.0, 0.1, 0.4):
        assert interrupted(words, after_s) == (130, "")


@pytest.mark.slow
def test_what_only_torch_can_refuse_leaves_no_run_either(tmp_path: Path) -> None:
    line = f"$S run mlp --device cpu --amp fp16 --home {tmp_path}"
    code, printed = shell(line, unbuffered=False)
    assert code == 2
    assert "it can do: off, bf16" in printed
    assert Home(tmp_path).runs() == []
