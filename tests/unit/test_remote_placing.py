"""The nodes with GPUs that are large enough for a run."""

import pytest

from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.errors import UsageError
from harness.predict.answer import Impossible, Prediction, Target
from harness.records.run import DeviceKind
from harness.remote.node import smallest_gpu
from harness.remote.placing import GpuNode, fitting_nodes
from harness.remote.protocol import GpuSize
from harness.settings import Settings
from harness.settings.resolve import resolve
from tests.queue_factories import a_prediction

SMALL, LARGE = GpuSize("a small GPU", 8 << 30), GpuSize("a large GPU", 80 << 30)
NODES = [GpuNode("1", SMALL), GpuNode("2", LARGE), GpuNode("3", None)]
SETTINGS = resolve({"model": "mlp"})


def test_a_run_gets_the_nodes_where_it_fits_and_those_that_do_not_say() -> None:
    targets: list[Target] = []

    def predict(_: Settings, target: Target) -> Prediction:
        targets.append(target)
        return a_prediction(20)

    assert [node.node_id for node in fitting_nodes(NODES, SETTINGS, predict)] == ["2", "3"]
    assert sorted(targets) == sorted(Target(DeviceKind.CUDA, *size) for size in (SMALL, LARGE))


def test_a_run_that_cannot_be_predicted_gets_all() -> None:
    assert fitting_nodes(NODES, SETTINGS, lambda *_: Impossible("no such thing")) == NODES


def test_a_run_that_fits_nowhere_is_refused_with_the_sizes() -> None:
    with pytest.raises(UsageError) as refusal:
        fitting_nodes(NODES[:2], SETTINGS, lambda *_: a_prediction(100))
    assert "a small GPU has 8.00 GiB, and 100 GiB are predicted" in str(refusal.value)
    assert "a large GPU has 80.0 GiB" in str(refusal.value)
    assert "--force" in str(refusal.value)


def test_a_cluster_without_gpus_has_no_nodes_for_one() -> None:
    assert fitting_nodes([], SETTINGS, lambda *_: a_prediction(1)) == []


def test_the_smallest_gpu_of_a_node_counts() -> None:
    library = FakeNvml([FakeGpu(name="a", total=80 << 30), FakeGpu(uuid="GPU-2", name="b", total=24 << 30)])
    assert smallest_gpu(library) == GpuSize("b", 24 << 30)
    assert library.users == 0


def test_a_node_without_a_driver_has_no_size() -> None:
    library = FakeNvml()
    library.fail("nvmlInit", "DriverNotLoaded")
    assert smallest_gpu(library) is None
