"""Downloads: the server's own routes, without a page."""

import io
import zipfile

import pytest

from harness.demo.writing import write
from harness.store.folder import RunFolder
from tests.e2e.serving import Dashboard
from tests.guard_factories import fetch

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(dashboard: Dashboard) -> RunFolder:
    """A run with a capture file, and a link that leads out of its folder."""
    folder = write("steady", dashboard.home, steps=20)
    folder.captures.mkdir(exist_ok=True)
    (folder.captures / "trace.json.gz").write_bytes(b"trace")
    (folder.captures / "link.json.gz").symlink_to(folder.log)
    return folder


def test_a_capture_file_is_named_after_its_run(dashboard: Dashboard, folder: RunFolder) -> None:
    reply = fetch(dashboard.port, f"/download/capture/{folder.run_id}/trace.json.gz")
    assert (reply.status, reply.body) == (200, b"trace")
    assert f'filename="{folder.run_id}-trace.json.gz"' in reply.headers["content-disposition"]


@pytest.mark.parametrize("file", ["link.json.gz", "..%2flog.sqlite3", "gone.json.gz"])
def test_only_regular_files_among_the_captures_are_sent(
    dashboard: Dashboard, folder: RunFolder, file: str
) -> None:
    reply = fetch(dashboard.port, f"/download/capture/{folder.run_id}/{file}")
    assert reply.status in (400, 404)
    assert b"SQLite" not in reply.body


def test_the_tables_of_several_runs_are_one_zip_file(dashboard: Dashboard, folder: RunFolder) -> None:
    other = write("steady", dashboard.home, steps=10)
    query = f"format=csv&run={folder.run_id}&run={other.run_id}"
    reply = fetch(dashboard.port, f"/download/tables?{query}")
    assert reply.headers["content-disposition"].endswith("stepscope-2-runs.csv.zip")
    assert int(reply.headers["content-length"]) == len(reply.body)
    with zipfile.ZipFile(io.BytesIO(reply.body)) as archive:
        lines = {run.run_id: archive.read(f"{run.run_id}/steps.csv").count(b"\n") for run in (folder, other)}
    assert lines == {folder.run_id: 21, other.run_id: 11}


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("capture/nobody/file", 404, "There is no run 'nobody'"),
        ("report?run=nobody", 404, "There is no run 'nobody'"),
        ("report", 400, "No run is named"),
        ("tables?format=csv", 400, "No run is named"),
        ("tables?format=xls&run=a", 400, "csv, jsonl, parquet, tensorboard"),
    ],
)
def test_requests_that_cannot_be_met_say_why(
    dashboard: Dashboard, path: str, status: int, message: str
) -> None:
    reply = fetch(dashboard.port, f"/download/{path}")
    assert (reply.status, message in reply.text) == (status, True), reply
