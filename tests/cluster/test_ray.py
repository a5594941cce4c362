"""Remote runs over a Ray cluster of a head and three nodes on this machine: real training, a node that is
killed, and a shipper that stops for a while."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.analysis.state import HEARTBEAT_LIMIT_S
from harness.identity import read_identity
from harness.records.remote import RemoteRequest
from harness.records.run import CommandKind, CommandState, RunState
from harness.records.script import ScriptOrigin
from harness.remote.node import HOME_VARIABLE, smallest_gpu
from harness.remote.placing import GpuNode
from harness.remote.protocol import NodeRequest, Pull
from harness.remote.ray_cluster import Place, RayCluster
from harness.settings.resolve import resolve
from harness.settings.spec import change
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.tune.folder import create_tune
from harness.tune.rows import Goal, TrialOutcome, Tune, TuneState
from harness.tune.tuning import TuneInterface, Tuner
from tests.supervision import PATIENT, ROOT, last_step, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

_NODES = 3
_MEMORY_BYTES = 80_000_000
_SETTINGS = resolve({"model": "mlp", "device": "cpu", "slow_loader_ms": 20.0})
# A node starts an interpreter and imports torch on a busy machine.
_START_S = 240.0
_LAG_S = 2.0
_COST_S = 20.0


class RayBench:
    """A home, and a cluster of nodes with their runs in a folder of their own."""

    def __init__(self, cluster: Any, path: Path) -> None:
        self.cluster = cluster
        self.node_home = path / "node"
        self.supervisor = Supervisor(Home(path / "home"), patience=PATIENT)

    def start(self, name: str, retries: int = 0) -> RunFolder:
        return self.supervisor.start(name, _SETTINGS, remote=RemoteRequest("ray", retries))

    def there(self, folder: RunFolder) -> RunFolder:
        return RunFolder(self.node_home / "runs" / folder.run_id)

    def training(self, folder: RunFolder) -> psutil.Process:
        """The training process on the node."""
        identity = read_identity(self.there(folder).process)
        assert identity is not None
        return psutil.Process(identity.pid)

    def node_of(self, folder: RunFolder) -> Any:
        """The cluster's node that trains the run."""
        pids = {parent.pid for parent in self.training(folder).parents()}
        (node,) = [
            node
            for node in self.cluster.worker_nodes
            if pids & {info.process.pid for infos in node.all_processes.values() for info in infos}
        ]
        return node


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayBench]:
    from ray import shutdown as disconnect
    from ray.cluster_utils import Cluster

    path = tmp_path_factory.mktemp("ray")
    before = dict(os.environ)
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_USAGE_STATS_ENABLED": "0",
        HOME_VARIABLE: str(path / "node"),
    }
    common = {"include_dashboard": False, "object_store_memory": _MEMORY_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    bench = RayBench(cluster, path)
    try:
        for _ in range(_NODES):
            cluster.add_node(num_cpus=1, **common)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield bench
    finally:
        for run in bench.supervisor.runs():
            if not run.status.state.is_over:
                bench.supervisor.stop(RunFolder(run.path))
        disconnect()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def runs(ray: RayBench) -> list[RunFolder]:
    """Three runs, which take the three nodes."""
    folders = [ray.start(name, retries) for name, retries in (("a", 0), ("b", 1), ("c", 0))]
    for folder in folders:
        until(partial(last_step, folder), bool, _START_S)
    return folders


def test_each_run_has_a_node_of_its_own(ray: RayBench, runs: list[RunFolder]) -> None:
    assert len({id(ray.node_of(folder)) for folder in runs}) == _NODES
    assert {ray.supervisor.status(folder).state for folder in runs} == {RunState.RUNNING}


def test_a_run_without_a_free_node_waits_and_can_be_stopped(ray: RayBench, runs: list[RunFolder]) -> None:
    folder = ray.start("too many")
    until(lambda: ray.supervisor.status(folder).message, lambda message: message.startswith("Waits for"))
    time.sleep(HEARTBEAT_LIMIT_S + 5)
    assert ray.supervisor.status(folder).state is RunState.LAUNCHING
    began_s = time.monotonic()
    ray.supervisor.stop(folder)
    print(f"stopped after {time.monotonic() - began_s:.1f} s")
    assert ray.supervisor.status(folder).state is RunState.STOPPED


def test_steps_arrive_within_two_seconds(ray: RayBench, runs: list[RunFolder]) -> None:
    lags_s = []
    for _ in range(5):
        for folder in runs:
            there = last_step(ray.there(folder))
            began_s = time.monotonic()
            until(partial(last_step, folder), there.__le__)
            lags_s.append(time.monotonic() - began_s)
    print(f"lag of steps, s: median {sorted(lags_s)[len(lags_s) // 2]:.2f}, highest {max(lags_s):.2f}")
    assert max(lags_s) < _LAG_S


def test_a_run_costs_two_small_processes(ray: RayBench, runs: list[RunFolder]) -> None:
    identity, actor = read_identity(runs[0].process), ray.training(runs[0]).parent()
    assert identity is not None
    assert actor is not None
    for name, process in (("collector", psutil.Process(identity.pid)), ("actor", actor)):
        before_s, began_s = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(_COST_S)
        cpu_pct = 100 * (sum(process.cpu_times()[:2]) - before_s) / (time.monotonic() - began_s)
        sockets = len(process.net_connections("tcp"))
        rss_mb = process.memory_info().rss / 1e6
        print(f"{name}: {rss_mb:.0f} MB resident, {sockets} TCP sockets, {cpu_pct:.1f} % of a core")
        assert cpu_pct < 20


@pytest.mark.parametrize("changes", [{"amp": "bf16"}, {"batch_size": 16}])
def test_a_change_of_settings_reaches_the_node(
    ray: RayBench, runs: list[RunFolder], changes: dict[str, Any]
) -> None:
    command_id = ray.supervisor.send(runs[0], CommandKind.SET, changes)
    answer = until(lambda: ray.supervisor.answer(runs[0], command_id), lambda ack: ack is not None)
    assert answer is not None
    assert answer.state == CommandState.APPLIED


def test_a_shipper_that_stops_for_a_while_loses_nothing(ray: RayBench, runs: list[RunFolder]) -> None:
    shipper = ray.training(runs[0]).parent()
    assert shipper is not None
    shipper.send_signal(signal.SIGSTOP)
    try:
        behind = last_step(runs[0])
        until(lambda: last_step(ray.there(runs[0])), lambda step: step > behind + 100)
    finally:
        shipper.send_signal(signal.SIGCONT)
    until(partial(last_step, runs[0]), lambda step: step > behind + 100)
    with LogReader(runs[0].log) as log:
        extent = log.extent()
    assert (extent.first, extent.steps) == (1, extent.last)


def test_a_node_that_is_killed_loses_its_run_alone_which_is_retried_on_request(
    ray: RayBench, runs: list[RunFolder]
) -> None:
    arrived = last_step(runs[1])
    training = ray.training(runs[1])
    ray.cluster.remove_node(ray.node_of(runs[1]), allow_graceful=False)
    status = until(lambda: ray.supervisor.status(runs[1]), lambda status: status.state.is_over)
    print(status.message)
    assert status.state is RunState.LOST
    assert "everything up to step" in status.message
    assert last_step(runs[1]) >= arrived
    until(training.is_running, lambda running: not running)
    assert {ray.supervisor.status(folder).state for folder in (runs[0], runs[2])} == {RunState.RUNNING}
    # It waits in Ray for a node, and takes the next that is free.
    again = until(lambda: _named(ray, "b-retry"), lambda folder: folder is not None)
    assert again is not None
    assert again.request().remote == RemoteRequest("ray", 0)
    ray.supervisor.stop(runs[2])
    assert ray.supervisor.status(runs[2]).state is RunState.STOPPED
    until(partial(last_step, again), bool, _START_S)


def test_a_stop_reaches_the_node(ray: RayBench, runs: list[RunFolder]) -> None:
    training = ray.training(runs[0])
    ray.supervisor.stop(runs[0])
    assert ray.supervisor.status(runs[0]).state is RunState.STOPPED
    until(training.is_running, lambda running: not running)


def test_a_training_ends_with_its_collector(ray: RayBench, runs: list[RunFolder]) -> None:
    again = _named(ray, "b-retry")
    assert again is not None
    training, collector = ray.training(again), read_identity(again.process)
    assert collector is not None
    os.kill(collector.pid, signal.SIGKILL)
    until(training.is_running, lambda running: not running)
    # Its parent, the collector of the first try, has ended: nobody knows the exit code.
    assert ray.supervisor.status(again).state is RunState.LOST


def test_a_script_trains_on_a_node(ray: RayBench) -> None:
    origin = ScriptOrigin("tests/scripts/vae.py", (), str(ROOT), sys.executable, None, None)
    folder = ray.supervisor.start_script("a script", origin, remote=RemoteRequest("ray"))
    status = until(lambda: ray.supervisor.status(folder), lambda status: status.state.is_over, _START_S)
    assert status.state is RunState.FINISHED, status.message
    assert last_step(folder) == last_step(ray.there(folder)) > 0


def test_a_run_gets_one_of_the_nodes_that_it_may_have(ray: RayBench) -> None:
    cluster = RayCluster(os.environ)
    assert cluster.gpu_nodes() == []
    for node in ray.cluster.worker_nodes:
        folder = ray.supervisor.home.create(None, _SETTINGS, time.time_ns())
        request = NodeRequest(folder.run_id, "chosen", 1, _SETTINGS.model_dump_json())
        place = Place(on_gpu=False, memory_bytes=1 << 20, node_ids=[node.node_id])
        with closing(cluster.start(request, place)) as there:
            there.pull(Pull({}, 0, ()), _START_S)
            assert ray.node_of(folder) is node
        ray.supervisor.home.remove(folder)


def test_a_node_with_gpus_that_no_driver_lists_may_have_any(ray: RayBench) -> None:
    node = ray.cluster.add_node(
        num_cpus=0, num_gpus=1, include_dashboard=False, object_store_memory=_MEMORY_BYTES
    )
    (gpu_node,) = RayCluster(os.environ).gpu_nodes()
    assert gpu_node == GpuNode(node.node_id, smallest_gpu())
    ray.cluster.remove_node(node)


def test_a_tune_trains_on_one_machine_of_the_cluster(ray: RayBench) -> None:
    folder = create_tune(ray.supervisor.home, time.time())
    settings = change(_SETTINGS, {"slow_loader_ms": 0.0}).model_dump(mode="json")
    tune = Tune(folder.tune_id, time.time(), settings, Goal.THROUGHPUT, 60.0, selected=("amp",), engine="ray")
    interface = TuneInterface(lambda: False, lambda _: None)
    with Tuner(ray.supervisor, folder, tune, interface, lambda *_: None) as tuner:
        tune = tuner.run()
    print(tune.message, [(trial.title, trial.message) for trial in tune.trials])
    assert tune.state is TuneState.COMPLETED
    assert tune.host == socket.gethostname()
    assert [trial.outcome for trial in tune.trials] == [TrialOutcome.MEASURED]
    run = ray.supervisor.home.find(tune.runs[0])
    assert run.request().remote == RemoteRequest("ray")
    assert ray.supervisor.status(run).state is RunState.STOPPED


def _named(ray: RayBench, name: str) -> RunFolder | None:
    folders = ray.supervisor.home.runs()
    return next((folder for folder in folders if folder.request().name == name), None)
