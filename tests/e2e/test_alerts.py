"""Alerts of a dashboard: sent by its server."""

import json
import os
import sys
from pathlib import Path

import pytest

from harness.records.run import EventKind
from harness.store.home import Home
from tests.alert_factories import Receiver, a_live_run
from tests.e2e.serving import Dashboard
from tests.supervision import until

pytestmark = pytest.mark.browser


@pytest.mark.long
def test_a_dashboard_posts_alerts_while_no_page_is_open(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with Receiver() as receiver, a_live_run(home) as run:

        def command(port: int) -> list[str]:
            words = ["dashboard", "--no-browser", "--port", str(port), "--alert-webhook", receiver.url]
            return [sys.executable, "-m", "harness", *words]

        with Dashboard(tmp_path, command, environ={"STEPSCOPE_HOME": str(home.path)}) as dashboard:
            until(lambda: list((home.path / "alerts").glob("*.json")), bool)
            run.put(EventKind.OOM, "So it is.")
            until(lambda: receiver.posts, bool)
            run.kill()
            until(lambda: len(receiver.posts), lambda posts: posts == 2)
        first, second = (json.loads(post.body)["text"] for post in receiver.posts)
        assert first == "Out of memory, cnn-1: So it is."
        assert second.startswith("Lost, cnn-1: ")
        assert "secret" not in dashboard.output.read_text(encoding="utf-8")
        assert os.listdir(home.path / "alerts")
