"""The process of a shell command: how it ends."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest


def run_command(folder: Path, body: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a process with a command that consists of `body`."""
    (folder / "interrupted.py").write_text(
        "import sys\n"
        "from harness import __main__, cli\n"
        "def run_process():\n"
        f"{indent(dedent(body), '    ')}\n"
        "cli.run_process = run_process\n"
        "sys.exit(__main__.main())\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("handler", ["raise", "return 130"], ids=["by the process", "by the command"])
def test_an_interrupt_within_an_evaluated_string_ends_with_130(tmp_path: Path, handler: str) -> None:
    """Also those of modules that a command imports."""
    body = f"""
        try:
            exec('raise KeyboardInterrupt')
        except KeyboardInterrupt:
            {handler}
        """
    assert run_command(tmp_path, body) == (130, "", "")


# As numpy.random does: the C code of a module drops any error of a call as its own.
_DROPPING = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(1000))
except BaseException:
    pass
print('imported')
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "printed"),
    [
        ("dropping", "imported\n"),
        ("importing", "imported\ngoes on\n"),
        ("failing", "imported\n"),
    ],
)
def test_an_interrupt_that_an_import_drops_ends_the_command_after_it(
    tmp_path: Path, module: str, printed: str
) -> None:
    (tmp_path / "dropping.py").write_text(_DROPPING, encoding="utf-8")
    (tmp_path / "importing.py").write_text("import dropping\nprint('goes on')\n", encoding="utf-8")
    (tmp_path / "failing.py").write_text("import dropping\nraise ImportError\n", encoding="utf-8")
    body = f"""
        try:
            import {module}
            print('not interrupted')
        finally:
            print('closed', sys.gettrace())
        """
    assert run_command(tmp_path, body) == (130, f"{printed}closed None\n", "")
