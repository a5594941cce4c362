"""Forks dashboards: streamlit is imported once. Each child draws pages until it is killed, or does one act.

A request is a JSON object on one line; see `tests.faults.forking`.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

import dashboard.views
from dashboard.data.runs import supervisor
from harness.records.run import CommandKind
from harness.settings.resolve import resolve
from tests.faults.forking import fork_per_line, report

PAGE = str(Path(dashboard.views.__file__).parents[1] / "page.py")
_KINDS = ("markdown", "text", "caption", "error", "warning", "info")


def _act(line: str) -> int:
    request = json.loads(line)
    os.environ["STEPSCOPE_HOME"] = request["home"]
    _ACTS[request["act"]](request)
    return 0


def _watch(request: dict[str, Any]) -> None:
    """Draw the Live page of a run over and over."""
    app = AppTest.from_file(PAGE, default_timeout=60)
    app.query_params["run"] = request["run"]
    while True:
        app.run()
        problem = next((exception.value.splitlines()[0] for exception in app.exception), None)
        text = " ".join(str(getattr(element, "value", "")) for kind in _KINDS for element in app.get(kind))
        state = re.search(r"-badge\[:material/\w+: ([a-z ]+)\]", text)
        report(os.getpid(), f"drew {problem or (state[1] if state else 'no state')}")


def _start(request: dict[str, Any]) -> None:
    folder = supervisor().start(None, resolve(request["settings"]), request_id=request["request_id"])
    report(os.getpid(), f"did {folder.run_id}")
    if request["stays"]:
        _watch(request | {"run": folder.run_id})


def _set(request: dict[str, Any]) -> None:
    holder = supervisor()
    folder = holder.home.find(request["run"])
    report(os.getpid(), f"did {holder.send(folder, CommandKind.SET, request['values'])}")


def _stop(request: dict[str, Any]) -> None:
    holder = supervisor()
    report(os.getpid(), f"did {holder.stop(holder.home.find(request['run']))}")


def _list(_request: dict[str, Any]) -> None:
    for run in supervisor().entries():
        report(os.getpid(), f"did {run.run_id} {run.state}")


_ACTS = {"watch": _watch, "start": _start, "set": _set, "stop": _stop, "list": _list}

if __name__ == "__main__":
    fork_per_line(_act)
