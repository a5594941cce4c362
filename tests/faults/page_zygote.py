"""Forks dashboards: streamlit is imported once. Each child draws pages until it is killed, or does one act.

Reads a request per line of stdin, a JSON object; says "PID started", what the child says, "PID ended STATUS".
"""

import gc
import json
import os
import re
import select
import sys
import traceback
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

import dashboard.views
from dashboard.data.runs import supervisor
from harness.records import CommandKind
from harness.selection import resolve

PAGE = str(Path(dashboard.views.__file__).parents[1] / "page.py")
_POLL_S = 0.01
_KINDS = ("markdown", "text", "caption", "error", "warning", "info")


def main() -> None:
    """Fork until stdin ends and every child has ended."""
    gc.collect()
    gc.freeze()
    rest, children, is_open = b"", set[int](), True
    while is_open or children:
        ready, _, _ = select.select([0] if is_open else [], [], [], _POLL_S)
        if ready:
            data = os.read(0, 65_536)
            is_open = bool(data)
            *lines, rest = (rest + data).split(b"\n")
            children |= {_fork(json.loads(line)) for line in lines}
        for child in list(children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                children.discard(child)
                _say(child, f"ended {status}")


def _say(pid: int, text: str) -> None:
    os.write(1, f"{pid} {text}\n".encode())


def _fork(request: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ["STEPSCOPE_HOME"] = request["home"]
            _ACTS[request["act"]](request)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            raise
        finally:
            os._exit(code)
    _say(child, "started")
    return child


def _watch(request: dict[str, Any]) -> None:
    """Draw the Live page of a run over and over."""
    app = AppTest.from_file(PAGE, default_timeout=60)
    app.query_params["run"] = request["run"]
    while True:
        app.run()
        problem = next((exception.value.splitlines()[0] for exception in app.exception), None)
        text = " ".join(str(getattr(element, "value", "")) for kind in _KINDS for element in app.get(kind))
        state = re.search(r"-badge\[:material/\w+: ([a-z ]+)\]", text)
        _say(os.getpid(), f"drew {problem or (state[1] if state else 'no state')}")


def _start(request: dict[str, Any]) -> None:
    folder = supervisor().start(None, resolve(request["settings"]), request_id=request["request_id"])
    _say(os.getpid(), f"did {folder.run_id}")
    if request["stays"]:
        _watch(request | {"run": folder.run_id})


def _set(request: dict[str, Any]) -> None:
    holder = supervisor()
    folder = holder.home.find(request["run"])
    _say(os.getpid(), f"did {holder.send(folder, CommandKind.SET, request['values'])}")


def _stop(request: dict[str, Any]) -> None:
    holder = supervisor()
    _say(os.getpid(), f"did {holder.stop(holder.home.find(request['run']))}")


def _list(_request: dict[str, Any]) -> None:
    for run in supervisor().runs():
        _say(os.getpid(), f"did {run.run_id} {run.status.state}")


_ACTS = {"watch": _watch, "start": _start, "set": _set, "stop": _stop, "list": _list}

if __name__ == "__main__":
    main()
