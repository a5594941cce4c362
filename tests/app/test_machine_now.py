"""The live part of the System page: what stands out, GPUs and host as cards, and who uses them."""

import socket
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import canvas
from dashboard.charts.cards import Card
from dashboard.data import live_runs, machine_watch
from dashboard.views import machine as page
from harness.device.machine import EMPTY_HISTORY, MachineHistory, MachineSampler
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.records.telemetry import ThrottleReason
from harness.store.home import Home
from tests.app.conftest import Open, Write, texts

Cards = dict[str, list[Card]]


class MachinePage:
    """The System page of a machine with these GPUs, as of its second moment."""

    def __init__(self, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = open_page
        self._patch = monkeypatch
        self.cards: Cards = {}

    def show(self, *gpus: FakeGpu, fail: dict[str, str] | None = None) -> AppTest:
        library = FakeNvml(gpus)
        for function, error in (fail or {}).items():
            library.fail(function, error)
        now_ns = [0]
        sampler = MachineSampler(library, lambda: now_ns[0])
        sampler.sample()
        now_ns[0] = 1_000_000_000
        machine = sampler.sample()
        sampler.close()
        return self.show_machine(machine)

    def show_machine(self, machine: MachineHistory) -> AppTest:
        class Watch:
            def read(self) -> MachineHistory:
                return machine

        self._patch.setattr(machine_watch, "MachineWatch", Watch)
        machine_watch.machine_watch.clear()
        with patch.object(canvas, "live_cards", lambda cards, key: self.cards.update({key: cards})):
            app = self._open("system")
        assert not app.exception
        return app


@pytest.fixture
def machine_page(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachinePage]:
    yield MachinePage(open_page, monkeypatch)
    machine_watch.machine_watch.clear()


def values(cards: list[Card]) -> dict[str, str]:
    return {card.key: card.value for card in cards}


def test_every_gpu_is_a_row_of_cards_without_any_run(machine_page: MachinePage) -> None:
    second = FakeGpu(uuid="GPU-two", name="Second", util=3)
    app = machine_page.show(FakeGpu(), second)
    assert "No run is going on" not in texts(app)
    first = FakeGpu().uuid
    assert set(machine_page.cards) == {f"cards_{first}", "cards_GPU-two", "cards_host"}
    assert values(machine_page.cards[f"cards_{first}"]) == {
        "busy": "87 %",
        "memory": "19.5 GiB",
        "power": "512 W",
        "temperature": "54 °C",
        "clock": "1,980 MHz",
        "pcie": "40.0 MiB/s",
        "tensor": "36 %",
    }
    assert values(machine_page.cards["cards_GPU-two"])["busy"] == "3 %"
    assert set(values(machine_page.cards["cards_host"])) == {
        "cpu",
        "ram",
        "read",
        "written",
        "received",
        "sent",
        "cost",
    }


def test_metrics_not_reported_read_n_a_with_their_reason(machine_page: MachinePage) -> None:
    gpu = FakeGpu(has_gpm=False)
    app = machine_page.show(
        gpu, fail={"nvmlDeviceGetPowerUsage": "NotSupported", "nvmlDeviceGetTemperature": "NoPermission"}
    )
    cards = {card.key: card for card in machine_page.cards[f"cards_{gpu.uuid}"]}
    assert {key for key, card in cards.items() if card.missing} == {"power", "temperature", "tensor"}
    assert cards["power"].value == "n/a"
    assert "does not support it" in cards["power"].note
    text = texts(app).replace("\\", "")
    assert "power (this device does not support it)" in text
    assert "temperature (this user has no permission)" in text
    assert "tensor cores, memory bandwidth (it needs a Hopper GPU or newer)" in text


def test_nothing_that_stands_out_is_said_too(machine_page: MachinePage) -> None:
    app = machine_page.show(FakeGpu(reasons=0))
    assert "Nothing stands out" in app.success[0].value


def test_overloaded_processors_are_the_finding_once_they_were_for_some_seconds(
    machine_page: MachinePage,
) -> None:
    sampler = MachineSampler(FakeNvml([]))
    (moment,) = sampler.sample().moments
    sampler.close()
    busy = moment._replace(host=moment.host._replace(cpu_pct=100.0, load=7.0, cores=2))
    machine = EMPTY_HISTORY._replace(moments=(busy,) * 10)
    assert "load of the last minute is 7" in machine_page.show_machine(machine).warning[0].value
    brief = machine._replace(moments=(busy,))
    assert not machine_page.show_machine(brief).warning


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        (ThrottleReason.POWER_CAP, "info", "power limit"),
        (ThrottleReason.HW_THERMAL, "error", "too hot"),
    ],
)
def test_throttling_is_the_finding(
    machine_page: MachinePage, reason: ThrottleReason, kind: str, words: str
) -> None:
    app = machine_page.show(FakeGpu(reasons=int(reason)))
    assert any(words in element.value for element in getattr(app, kind))


def test_throttle_reasons_are_listed_with_their_time(machine_page: MachinePage) -> None:
    app = machine_page.show(FakeGpu(reasons=4))
    (table,) = [frame.value for frame in app.dataframe if "Since the driver was loaded" in frame.value]
    row = table.iloc[0]
    assert row["Throttled because it is"] == "at its power limit"
    assert (row["Now"], row["Since the driver was loaded"]) == ("yes", "12.0 s")


def test_a_gpu_that_was_never_throttled_is_one_line(machine_page: MachinePage) -> None:
    gpu = FakeGpu(reasons=0)
    gpu.fields[74] = 0
    assert "Not throttled since" in texts(machine_page.show(gpu))


def test_processes_are_listed_with_their_memory(
    machine_page: MachinePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "sees_machine_pids", lambda: True)
    app = machine_page.show(FakeGpu(compute=[(2**22 - 7, 1 << 30), (2**22 - 5, 2 << 30)]))
    (table,) = [frame.value for frame in app.dataframe if "GPU memory" in frame.value]
    assert list(table["GPU memory"]) == ["2.00 GiB", "1.00 GiB"]
    assert list(table["Owner"]) == ["another process"] * 2


def test_in_a_container_process_numbers_are_said_to_mean_nothing_here(
    machine_page: MachinePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "sees_machine_pids", lambda: False)
    app = machine_page.show(FakeGpu())
    assert "cannot be matched" in texts(app)
    (table,) = [frame.value for frame in app.dataframe if "GPU memory" in frame.value]
    assert list(table["Owner"]) == ["unknown"]


def test_a_machine_without_nvml_shows_its_host_and_why_no_gpu(machine_page: MachinePage) -> None:
    app = machine_page.show(FakeGpu(), fail={"nvmlInit": "LibraryNotFound"})
    assert list(machine_page.cards) == ["cards_host"]
    assert "libnvidia" in texts(app)


def test_a_lost_gpu_is_said_and_the_others_go_on(machine_page: MachinePage) -> None:
    app = machine_page.show(FakeGpu(), fail={"nvmlDeviceGetPowerUsage": "GpuIsLost"})
    assert any("stopped responding" in warning.value.replace("\\", "") for warning in app.warning)
    assert list(machine_page.cards) == ["cards_host"]


def test_before_the_first_sample_the_page_says_so(machine_page: MachinePage) -> None:
    app = machine_page.show_machine(EMPTY_HISTORY)
    assert any("first sample" in info.value for info in app.info)


def test_a_simulated_run_does_not_go_on(machine_page: MachinePage, demo: Write) -> None:
    for scenario in ("steady", "stalled"):
        demo(scenario, 50)
    assert "Active runs" not in texts(machine_page.show(FakeGpu()))


def test_with_a_file_as_home_the_machine_is_shown_and_the_reason_for_no_runs(
    machine_page: MachinePage, home: Home
) -> None:
    home.path.touch()
    app = machine_page.show(FakeGpu())
    assert ["cannot be the home" in error.value for error in app.error] == [True]
    assert len(machine_page.cards) == 2


@pytest.fixture
def going_on(monkeypatch: pytest.MonkeyPatch, demo: Write) -> Callable[[str], live_runs.LiveRun]:
    """A simulated run that the page takes for one that goes on, on the fake GPU."""

    def taken(uuid: str) -> live_runs.LiveRun:
        run = live_runs.read_run(demo("steady", 200))._replace(device=uuid, pid=2**22 - 7)
        monkeypatch.setattr(page, "live_runs", lambda: [run])
        return run

    return taken


def test_a_run_on_the_gpu_is_named_and_another_process_stands_out(
    machine_page: MachinePage, going_on: Callable[[str], live_runs.LiveRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "sees_machine_pids", lambda: True)
    gpu = FakeGpu(reasons=0, compute=[(2**22 - 7, 9 << 30), (2**22 - 5, 2 << 30)])
    run = going_on(gpu.uuid)
    app = machine_page.show(gpu)
    (table,) = [frame.value for frame in app.dataframe if "GPU memory" in frame.value]
    assert list(table["Owner"]) == [f"run {run.name}", "another process"]
    assert any("Another process uses" in warning.value for warning in app.warning)


def test_resources_of_a_run_are_a_row(
    machine_page: MachinePage, going_on: Callable[[str], live_runs.LiveRun]
) -> None:
    run = going_on("cpu")
    app = machine_page.show(FakeGpu())
    (table,) = [frame.value for frame in app.dataframe if "Sampling" in frame.value]
    row = table.iloc[0]
    assert row["Run"] == run.name
    assert row["CPU"].endswith("%")
    assert row["Sampling"].endswith("%")
    assert row["Energy per 1,000 samples"].endswith("J")


def test_devices_on_other_hosts_are_listed_by_host_and_uuid(
    machine_page: MachinePage, monkeypatch: pytest.MonkeyPatch, demo: Write
) -> None:
    run = live_runs.read_run(demo("steady", 200))
    runs = [run._replace(machine=host, device=f"GPU-of-{host}", name=host) for host in ("node-2", "node-1")]
    monkeypatch.setattr(page, "live_runs", lambda: runs)
    tables = [frame.value for frame in machine_page.show(FakeGpu()).dataframe if "UUID" in frame.value]
    assert [list(table["Host"]) for table in tables] == [["node-1", "node-2"]]
    assert list(tables[0]["UUID"]) == ["GPU-of-node-1", "GPU-of-node-2"]
    assert tables[0]["Utilization"].iloc[0].endswith(" %")


def test_devices_of_this_host_are_not_listed_twice(
    machine_page: MachinePage, monkeypatch: pytest.MonkeyPatch, demo: Write
) -> None:
    run = live_runs.read_run(demo("steady", 200))._replace(machine=socket.gethostname())
    monkeypatch.setattr(page, "live_runs", lambda: [run])
    assert not [frame for frame in machine_page.show(FakeGpu()).dataframe if "UUID" in frame.value]
