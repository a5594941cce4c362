"""The composition root of a collector: places the run of a folder on a cluster, and collects it."""

import json
from collections.abc import Mapping

from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import open_heap
from harness.errors import UsageError
from harness.predict.answer import Prediction, Target
from harness.predict.asking import Predictor
from harness.records.remote import RemoteRequest
from harness.remote.collecting import collect
from harness.remote.protocol import NodeRequest
from harness.remote.ray_cluster import RayCluster, RayNode
from harness.settings import Settings
from harness.settings.spec import change, from_json
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor

_CPU, _AUTO = "cpu", "auto"
_PREDICTION_S = 60.0


def execute(folder: RunFolder, environ: Mapping[str, str]) -> int:
    """Train the run of `folder` on the cluster, and return an exit code. Raises StepscopeError."""
    settings = from_json(folder.request().settings_json)
    home = Home(folder.path.parent.parent)
    cluster = RayCluster(environ)
    word = settings.device.strip().lower()
    on_gpu = word != _CPU and (word != _AUTO or cluster.has_gpus)
    memory_bytes = None if on_gpu else _host_memory_bytes(home, settings)

    def start_node(request: NodeRequest) -> RayNode:
        # The device that Ray gives a run is the only one that it sees.
        values = {**json.loads(request.settings_json), "device": _AUTO if on_gpu else _CPU}
        request = request._replace(settings_json=json.dumps(values))
        return cluster.start(request, on_gpu=on_gpu, memory_bytes=memory_bytes)

    def retry(lost: RunFolder, retries: int) -> str:
        request, supervisor = lost.request(), Supervisor(home)
        remote = RemoteRequest("ray", retries)
        try:
            again = supervisor.start(f"{request.name}-retry", settings, remote=remote)
        except UsageError:  # The name is taken.
            again = supervisor.start(None, settings, remote=remote)
        return again.request().name

    return collect(folder, start_node, retry)


def _host_memory_bytes(home: Home, settings: Settings) -> int | None:
    """Return the predicted peak of a run on the CPU, with the process around it; None if it cannot be
    predicted."""
    target = Target.of(cpu_facts(open_heap()))
    with Predictor(home.path) as predictor:
        answer = predictor.wait(change(settings, {"device": _CPU}), target, _PREDICTION_S)
    if not isinstance(answer, Prediction):
        return None
    return answer.needed_bytes + (answer.context_bytes or 0)
