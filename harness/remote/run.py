"""The composition root of a collector: places the run of a folder on a cluster, and collects it."""

import json
from collections.abc import Mapping

from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import open_heap
from harness.errors import StepscopeError, UsageError
from harness.predict.answer import Answer, Prediction, Target
from harness.predict.asking import Predictor
from harness.records.remote import RemoteRequest
from harness.remote.collecting import collect
from harness.remote.placing import fitting_nodes
from harness.remote.protocol import NodeRequest
from harness.remote.ray_cluster import Place, RayCluster, RayNode
from harness.settings import Settings
from harness.settings.spec import change, from_json
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor

_CPU, _AUTO = "cpu", "auto"
_PREDICTION_S = 60.0


def execute(folder: RunFolder, environ: Mapping[str, str]) -> int:
    """Train the run of `folder` on the cluster, and return an exit code. Raises StepscopeError."""
    request = folder.request()
    assert request.remote is not None
    settings = from_json(request.settings_json) if request.script is None else None
    home = Home(folder.path.parent.parent)
    cluster = RayCluster(environ)
    place = _place(cluster, home, settings, request.remote)

    def start_node(request: NodeRequest) -> RayNode:
        if request.script is None:
            # The device that Ray gives a run is the only one that it sees.
            values = {**json.loads(request.settings_json), "device": _AUTO if place.on_gpu else _CPU}
            request = request._replace(settings_json=json.dumps(values))
        return cluster.start(request, place)

    def retry(lost: RunFolder, retries: int) -> str:
        return _start_again(Supervisor(home), lost, settings, retries).request().name

    return collect(folder, start_node, retry)


def _place(cluster: RayCluster, home: Home, settings: Settings | None, remote: RemoteRequest) -> Place:
    """Return where the run may train. Raises UsageError when it fits nowhere, StepscopeError."""
    node_ids = None if remote.host is None else cluster.nodes_of(remote.host)
    if node_ids == []:
        raise StepscopeError(f"The machine {remote.host} is not in the Ray cluster any more.")
    if settings is None:  # The memory of a script cannot be predicted.
        return Place(cluster.has_gpus, node_ids=node_ids)
    word = settings.device.strip().lower()
    on_gpu = word != _CPU and (word != _AUTO or cluster.has_gpus)
    with Predictor(home.path) as predictor:

        def predict(of: Settings, target: Target) -> Answer:
            return predictor.wait(of, target, _PREDICTION_S)

        if not on_gpu:
            target = Target.of(cpu_facts(open_heap()))
            answer = predict(change(settings, {"device": _CPU}), target)
            return Place(on_gpu, _host_memory_bytes(answer), node_ids)
        if node_ids is None and not remote.is_forced:
            nodes = cluster.gpu_nodes()
            fitting = fitting_nodes(nodes, settings, predict)
            node_ids = None if len(fitting) == len(nodes) else [node.node_id for node in fitting]
    return Place(on_gpu, node_ids=node_ids)


def _host_memory_bytes(answer: Answer) -> int | None:
    """Return the predicted peak of a run on the CPU, with the process around it; None if it cannot be
    predicted."""
    return answer.needed_bytes + (answer.context_bytes or 0) if isinstance(answer, Prediction) else None


def _start_again(
    supervisor: Supervisor, lost: RunFolder, settings: Settings | None, retries: int
) -> RunFolder:
    """Start the run of a node that was lost again, as a new one."""
    request, script = lost.request(), lost.script()
    assert request.remote is not None
    remote = request.remote._replace(retries=retries)

    def start(name: str | None) -> RunFolder:
        if script is not None:
            return supervisor.start_script(name, script, remote=remote)
        assert settings is not None
        return supervisor.start(name, settings, remote=remote)

    try:
        return start(f"{request.name}-retry")
    except UsageError:  # The name is taken.
        return start(None)
