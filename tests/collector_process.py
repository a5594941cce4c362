"""The collector of a remote run in a process of its own, with its node in the same process:
`python collector_process.py MODE NODE_HOME -m harness _run FOLDER`. MODE is that of `tests.fake_training`, or
"script": then the node really runs the script of the run.
While there is a file `dead` in NODE_HOME the node has died; with `silent` its answers are lost; with
`waiting` it has not begun; with `late` each answer comes with the next request, as those of a slow link."""

import sys
from collections.abc import Mapping
from pathlib import Path

from harness.remote.collecting import collect
from harness.remote.node import NodeRun, spawn_dependent
from harness.remote.protocol import News, NodeLostError, NodeRequest, NodeSilentError, Pull
from harness.store.folder import RunFolder
from harness.supervisor.launch import Process
from tests.supervision import ROOT


class Link:
    """The node of a run, over a link that a test breaks."""

    def __init__(self, run: NodeRun, home: Path) -> None:
        self._run = run
        self._home = home
        self._late: News | None = None
        self._was_late = False

    def pull(self, request: Pull, timeout_s: float) -> News:
        if (self._home / "dead").exists():
            raise NodeLostError("the node died")
        if (self._home / "waiting").exists():
            raise NodeSilentError("no node is free")
        news, self._late = self._late, None
        news = news or self._run.pull(request)
        if (self._home / "silent").exists():
            raise NodeSilentError("no answer")
        if (self._home / "late").exists() and not self._was_late:
            self._late, self._was_late = news, True
            raise NodeSilentError("no answer yet")
        self._was_late = False
        return news

    def signal(self, number: int) -> None:
        self._run.signal(number)

    def close(self) -> None:
        self._run.close()


def main(mode: str, home: Path, folder: RunFolder) -> int:
    def spawn(command: list[str], environ: Mapping[str, str], output: Path) -> Process:
        script = str(ROOT / "tests" / "fake_training.py")
        words = [sys.executable, "-P", script, mode, *command[-4:]]
        return spawn_dependent(words, {**environ, "PYTHONPATH": str(ROOT)}, output)

    def start_node(request: NodeRequest) -> Link:
        return Link(NodeRun(request, home, spawn_dependent if mode == "script" else spawn), home)

    def retry(lost: RunFolder, retries: int) -> str:
        (home / "retries").write_text(str(retries))
        return "another"

    return collect(folder, start_node, retry)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), RunFolder(Path(sys.argv[-1]))))
