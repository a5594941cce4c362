"""Routes of downloads that cannot be made."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from dashboard.download_routes import download_routes
from harness.demo.writing import write
from harness.store.home import Home
from harness.supervisor import Supervisor


def test_tables_that_find_no_room_are_answered_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(Home(tmp_path / "home"))
    folder = write("steady", supervisor.home, steps=3)
    [_, tables, _] = download_routes(str, lambda: supervisor)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    query = f"format=csv&run={folder.run_id}".encode()
    reply: Response = asyncio.run(tables.endpoint(Request({"type": "http", "query_string": query})))
    assert reply.status_code == 500
    message = bytes(reply.body).decode()
    assert message.startswith(
        f"The tables cannot be written to {tmp_path / 'gone'}: No such file or directory."
    )
    assert f"stepscope export {folder.run_id}" in message
