"""The process of a shell command: how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("handler", ["raise", "return 130"], ids=["by the process", "by the command"])
def test_an_interrupt_within_an_evaluated_string_ends_with_130(tmp_path: Path, handler: str) -> None:
    """Wherever it is caught: modules that a command imports have such strings too."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from harness import __main__, cli\n"
        "def run_process():\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        f"        {handler}\n"
        "cli.run_process = run_process\n"
        "sys.exit(__main__.main())\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("depth", [1, 2], ids=["by the command", "by a module of it"])
def test_an_interrupt_that_an_import_drops_ends_the_command_after_it(tmp_path: Path, depth: int) -> None:
    """As numpy.random does: the C code of a module drops any error of a call as its own."""
    (tmp_path / "dropping.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    sum(range(1000))\n"
        "except BaseException:\n"
        "    pass\n"
        "print('imported')\n",
        encoding="utf-8",
    )
    (tmp_path / "importing.py").write_text("import dropping\nprint('goes on')\n", encoding="utf-8")
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from harness import __main__, cli\n"
        "def run_process():\n"
        "    try:\n"
        f"        import {['dropping', 'importing'][depth - 1]}\n"
        "        print('not interrupted')\n"
        "    finally:\n"
        "        print('closed', sys.gettrace())\n"
        "cli.run_process = run_process\n"
        "sys.exit(__main__.main())\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    goes_on = "goes on\n" if depth == 2 else ""
    assert (done.returncode, done.stdout, done.stderr) == (130, f"imported\n{goes_on}closed None\n", "")
