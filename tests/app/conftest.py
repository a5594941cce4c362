"""A home of its own for every test, with the simulated runs where a test asks for them."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from dashboard.data import changes, doctor, measuring, predictions, runs
from harness.demo.machine import FACTS
from harness.device.doctor.report import Check, DeviceReport, DoctorReport, Status
from harness.predict.answer import Advice, Answer, Target
from harness.records.run import AmpMode, DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.simulated_runs import SimulatedRuns
from tests.supervision import PATIENCE_S

APP = str(Path(__file__).parents[2] / "dashboard" / "page.py")

Write = Callable[..., RunFolder]
Open = Callable[..., AppTest]


CPU = DeviceFacts(
    kind=DeviceKind.CPU,
    ordinal=None,
    uuid=None,
    name="Some CPU",
    memory_bytes=16 * 2**30,
    capability=None,
    multiprocessors=8,
    power_limit_w=None,
    amp_modes=(AmpMode.OFF, AmpMode.BF16),
    can_pin=False,
    can_trim=True,
    can_cap=True,
    can_compile=False,
)
GPU = FACTS._replace(uuid="GPU-1234", name="NVIDIA H200")
REPORT = DoctorReport(
    checks=(
        Check("Python", Status.OK, "3.11"),
        Check("NVML", Status.PROBLEM, "driver mismatch", "Reboot the machine."),
    ),
    devices=(
        DeviceReport(GPU, "4th generation", ()),
        DeviceReport(CPU, None, ("fp16 mixed precision needs a GPU.",)),
    ),
)


class FakeDoctorRun:
    """An examination with its result; `problem` in its place, or neither yet."""

    report: DoctorReport | None = REPORT
    problem: str | None = None
    is_done = True


@pytest.fixture
def fake_doctor_run(monkeypatch: pytest.MonkeyPatch) -> FakeDoctorRun:
    """The doctor's report that the pages get; a test may alter it."""
    fake = FakeDoctorRun()
    monkeypatch.setattr(doctor, "DoctorRun", lambda: fake)
    return fake


class FakePredictor:
    """A predictor with fixed results; None means that it is still computing."""

    answer: Answer | None = None
    advice: Advice | None = None

    def request(self, settings: Settings, target: Target) -> Answer | None:
        return self.answer

    def advise(self, settings: Settings, target: Target) -> Advice | None:
        return self.advice


@pytest.fixture
def fake_predictor(monkeypatch: pytest.MonkeyPatch) -> FakePredictor:
    """The prediction that the pages get; a test may alter it."""
    fake = FakePredictor()
    monkeypatch.setattr(predictions, "Predictor", lambda home: fake)
    return fake


@pytest.fixture(autouse=True)
def home(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake_doctor_run: FakeDoctorRun,
    fake_predictor: FakePredictor,
) -> Iterator[Home]:
    """The home of the pages; caches are cleared after each test."""
    del fake_doctor_run, fake_predictor
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "home"))
    yield Home(tmp_path / "home")
    runs.supervisor.clear()
    doctor.doctor_run.clear()
    predictions.predictor.clear()
    predictions._cache.clear()
    predictions._requests.clear()
    changes._comparisons.clear()
    changes._reasons.clear()
    measuring._computed.clear()
    predictions.error_sentence.clear()


@pytest.fixture
def demo(home: Home, simulated_runs: SimulatedRuns) -> Write:
    """Puts a scenario into the home."""
    return partial(simulated_runs.copy, home)


@pytest.fixture(scope="session", autouse=True)
def _components_are_searched_once() -> Iterator[None]:
    """Each page in a test reads the metadata of all installed packages, in search of components: 0.15 s."""
    with pytest.MonkeyPatch.context() as patch:
        scan = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield


@pytest.fixture
def open_page() -> Open:
    """Opens a page ("live", "runs", "new", "system") with query parameters, and runs it once."""

    def opened(page: str = "live", **query: str) -> AppTest:
        app = AppTest.from_file(APP, default_timeout=PATIENCE_S)
        for name, value in query.items():
            app.query_params[name] = value
        app.run()
        if page != "live":
            # AppTest.switch_page knows pages by file; ours are functions.
            app._page_hash = app.session_state["pages"][page]._script_hash
            app.run()
        return app

    return opened


def texts(app: AppTest) -> str:
    """Everything a person reads on the page, one piece a line."""
    kinds = (
        "title",
        "header",
        "subheader",
        "markdown",
        "text",
        "caption",
        "error",
        "warning",
        "info",
        "code",
    )
    return "\n".join(str(getattr(element, "value", "")) for kind in kinds for element in app.get(kind))


def setting(widgets: Iterable[Any], name: str, place: str = "bar") -> Any:
    """The one of these widgets that is for the setting `name`, in the bar or in a popover."""
    return next(one for one in widgets if re.fullmatch(rf"{place}_{name}_\d+", one.key or ""))
