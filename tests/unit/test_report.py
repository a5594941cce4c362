"""`stepscope report`: one HTML file of a run or a comparison that loads nothing and escapes every name."""

import os
import re
import resource
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dashboard.report.build import report_of
from harness.cli import main
from harness.cli.reporting import default_name
from harness.demo.writing import write
from harness.errors import LogError
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.compare_factories import a_logged_run
from tests.measuring_factories import write_measured_log

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;"
MOST_BYTES = 6 * 2**20


class Tags(HTMLParser):
    """The tags of a page, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href", "onerror")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.text += data


def a_supervisor() -> Supervisor:
    return Supervisor(Home.locate(None, os.environ), is_read_only=True)


def report_html(*folders: RunFolder) -> str:
    return report_of(a_supervisor(), folders)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["amp", "leak", "lost", "one-step", "empty"])
def test_a_run_in_any_state_has_a_report(scenario: str) -> None:
    folder = write(scenario, Home.locate(None, os.environ), steps=None if scenario == "empty" else 120)
    page = report_html(folder)
    tags = Tags(page)
    assert f"demo: {scenario}" in tags.text
    assert tags.sources == []
    assert tags.tags.count("script") == 3
    assert len(page.encode()) < MOST_BYTES


def test_a_run_that_ran_out_of_memory_shows_its_report_and_settings() -> None:
    text = Tags(report_html(write("oom", Home.locate(None, os.environ)))).text
    assert "Out of memory in step" in text
    assert "Memory breakdown" in text
    assert "batch_size" in text


def test_a_hostile_name_is_text_everywhere() -> None:
    page = report_html(a_logged_run(MARKUP), a_logged_run("plain"))
    tags = Tags(page)
    assert MARKUP[:40] in tags.text
    assert tags.tags.count("script") == 3
    assert "img" not in tags.tags
    assert tags.sources == []
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]


def test_a_comparison_names_the_settings_that_differ_and_says_that_each_ran_once() -> None:
    text = Tags(report_html(a_logged_run("a"), a_logged_run("b", batch_size=64))).text
    assert "settings that differ: batch_size 32 → 64" in text
    assert "each ran once" in text


def test_runs_without_a_step_are_reported_without_charts() -> None:
    text = Tags(report_html(a_logged_run("a", count=0), a_logged_run("b", count=0))).text
    assert "n/a: there is no step in the log." in text
    assert "These runs have no figure in common." in text


def test_losses_that_are_not_numbers_do_not_break_the_report() -> None:
    folder = a_logged_run("nan", change=lambda row: row._replace(loss=None, loss_state=1))
    assert "NaN" in Tags(report_html(folder)).text


def test_an_unreadable_log_is_an_error() -> None:
    folder = a_logged_run("damaged")
    folder.log.write_bytes(b"garbage")
    with pytest.raises(LogError, match="not a Stepscope log"):
        report_html(folder)


@pytest.mark.parametrize(
    ("name", "file"),
    [("cnn-1", "stepscope-cnn-1.html"), ("../../etc", "stepscope-etc.html"), ("日本", "stepscope-run.html")],
)
def test_the_file_of_a_run_is_named_after_it(name: str, file: str) -> None:
    assert default_name(name) == file


@pytest.mark.slow
def test_a_report_is_written_and_overwritten_on_request_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a_logged_run("a")
    path = tmp_path / "report.html"
    assert main(["report", "a", "-o", str(path)]) == 0
    assert "Wrote" in capfd.readouterr().out
    written = path.read_text(encoding="utf-8")
    path.write_text("mine", encoding="utf-8")
    assert main(["report", "a", "-o", str(path)]) == 1
    assert "exists; name another file with -o, or overwrite it with --force" in capfd.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"
    assert main(["report", "a", "-o", str(path), "--force"]) == 0
    assert len(path.read_text(encoding="utf-8")) == len(written)


@pytest.mark.slow
def test_a_report_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a_logged_run("a")
    assert main(["report", "a", "-o", str(tmp_path / "missing" / "report.html")]) == 1
    assert "cannot be written: no such file or directory" in capfd.readouterr().err
    assert main(["report", "a", "-o", str(tmp_path)]) == 1
    assert "is a folder" in capfd.readouterr().err
    assert main(["report", "a", "-o", str(tmp_path / ("a" * 256))]) == 1
    assert "cannot be written: file name too long" in capfd.readouterr().err
    words = [sys.executable, "-m", "harness", "report", "a", "-o", str(tmp_path / "full.html")]
    full = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18)),
    )
    assert full.returncode == 1
    assert "full.html cannot be written: file too large" in full.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_runs_and_a_run_named_twice_are_rejected(capfd: pytest.CaptureFixture[str]) -> None:
    a_logged_run("a")
    assert main(["report", "nobody"]) == 2
    assert main(["report", "a", "a"]) == 2
    assert "There is no run 'nobody'" in (text := capfd.readouterr().err)
    assert "named twice" in text


def test_measured_effects_are_in_the_report() -> None:
    home = Home.locate(None, os.environ)
    folder = home.create("measured", resolve({"model": "mlp"}), 1)
    write_measured_log(folder.log)
    text = Tags(report_html(folder)).text
    assert "AMP off → bf16" in text
    assert re.search(r"Faster: undisturbed step .* → .* \(−2\d %", text), text


def test_a_run_without_changes_says_so_in_its_report() -> None:
    assert (
        "No setting was changed."
        in Tags(report_html(write("steady", Home.locate(None, os.environ), 60))).text
    )
