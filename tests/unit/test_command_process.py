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
