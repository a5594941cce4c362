"""The metrics for Prometheus, read by the parser of its own client library."""

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from harness.demo.writing import write
from harness.metrics import Exposition
from harness.metrics.exposition import ENDED_S, SHARED_S
from harness.records.floats import FloatState
from harness.records.overhead import UnobservedRow
from harness.records.run import EventKind, RunState, StepRow
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.hostile_folders import edit
from tests.store_factories import a_device_sample, a_run, a_step, an_event, steps

_GRAFANA = Path(__file__).parents[2] / "docs" / "grafana.json"
_STEP = "stepscope_step_duration_seconds"


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def a_home() -> Home:
    return Home.locate(None, os.environ)


def an_exposed_run(
    name: str = "cnn-1", change: Callable[[StepRow], StepRow] = lambda row: row, **values: object
) -> RunFolder:
    """Steps 1 to 19, an unobserved one, and step 21 with a loss of NaN; ended now. `change` is applied to the
    steps."""
    folder = a_home().create(name, resolve({"model": "mlp"}), time.time_ns())
    run = a_run(folder.run_id, name)._replace(
        settings=resolve({"model": "mlp"}).model_dump_json(),
        device='{"kind": "cpu", "ordinal": null, "uuid": null, "name": "CPU", "memory_bytes": null, '
        '"capability": null, "multiprocessors": null, "power_limit_w": null, "amp_modes": [], '
        '"can_pin": false, "can_trim": true, "can_cap": true, "can_compile": true}',
        state=RunState.FINISHED,
        state_message="Took all steps.",
        ended_unix_ns=time.time_ns(),
    )
    last = a_step(21, None, FloatState.NAN.value)
    rows = [change(row) for row in (*steps(1, 19), last)]
    unobserved = UnobservedRow(20, 20, 40, 2_000_000, rows[0].samples, None, 0)
    with LogAppender(folder.log, run._replace(**values)) as appender:  # type: ignore[arg-type]  # its fields
        appender.append(rows, [unobserved, a_device_sample(0, 5), an_event()])
    return folder


def an_exposition(home: Home | None = None) -> Exposition:
    return Exposition(Supervisor(home or a_home(), is_read_only=True))


def samples(exposition: Exposition) -> list[Sample]:
    text = exposition.scrape("").body.decode()
    return [Sample(*s[:3]) for family in text_string_to_metric_families(text) for s in family.samples]


def value(exposition: Exposition, name: str, **labels: str) -> float:
    """The value of the only series with these labels."""
    (sample,) = [s for s in samples(exposition) if s.name == name and labels.items() <= s.labels.items()]
    return sample.value


def test_totals_and_newest_figures_are_those_of_the_log() -> None:
    an_exposed_run()
    exposition, rows = an_exposition(), [*steps(1, 19), a_step(21)]
    assert value(exposition, "stepscope_steps_total") == 21
    assert value(exposition, "stepscope_samples_total") == 21 * 32
    assert value(exposition, f"{_STEP}_count") == 20
    assert value(exposition, f"{_STEP}_sum") == pytest.approx(sum(row.step_ns for row in rows) / 1e9)
    assert value(exposition, _STEP, quantile="0.5") == pytest.approx(0.002_000_003, abs=1e-8)
    backward_s = value(exposition, "stepscope_phase_duration_seconds_sum", phase="backward", clock="cpu")
    assert backward_s == pytest.approx(20 * 900_000 / 1e9)
    assert value(exposition, "stepscope_memory_allocated_bytes") == rows[-1].allocated_bytes
    assert value(exposition, "stepscope_device_utilization_ratio") == 0.5
    assert value(exposition, "stepscope_non_finite_losses_total") == 1
    assert math.isnan(value(exposition, "stepscope_loss"))
    assert value(exposition, "stepscope_events_total", kind=EventKind.WARNING) == 1


def test_exactly_one_state_is_set() -> None:
    an_exposed_run()
    states = [s for s in samples(an_exposition()) if s.name == "stepscope_run_state" and s.value]
    assert [s.labels["state"] for s in states] == ["finished"]
    assert states[0].labels["run"] == "cnn-1"
    assert (states[0].labels["model"], states[0].labels["device"]) == ("mlp laptop", "cpu")


def test_what_was_not_measured_has_no_series() -> None:
    an_exposed_run()
    names = {s.name for s in samples(an_exposition())}
    assert not names & {"stepscope_tokens_total", "stepscope_device_power_watts"}
    clocks = {s.labels["clock"] for s in samples(an_exposition()) if "clock" in s.labels}
    assert clocks == {"cpu"}


def test_an_unknown_number_of_samples_and_a_phase_that_nothing_measured_have_no_series() -> None:
    an_exposed_run(change=lambda row: row._replace(samples=0, h2d_ns=0))
    exposed = samples(an_exposition())
    assert "stepscope_samples_total" not in {s.name for s in exposed}
    phases = {s.labels["phase"] for s in exposed if s.labels.get("clock") == "cpu"}
    assert "forward" in phases
    assert "h2d" not in phases


def test_the_allocated_memory_is_that_of_the_newest_step_that_was_read() -> None:
    last = a_step(21)

    def not_read(row: StepRow) -> StepRow:
        return row._replace(allocated_bytes=None, peak_allocated_bytes=None) if row.step > 15 else row

    an_exposed_run(change=not_read)
    exposition = an_exposition()
    assert value(exposition, "stepscope_memory_allocated_bytes") == a_step(15).allocated_bytes
    assert value(exposition, "stepscope_memory_reserved_bytes") == last.reserved_bytes


def test_an_ended_run_is_exposed_for_a_while() -> None:
    folder, now_s = an_exposed_run(), time.time()
    late = Exposition(Supervisor(a_home()), unix_s=lambda: now_s + ENDED_S + 5)
    assert samples(late) == []
    soon = Exposition(Supervisor(a_home()), unix_s=lambda: now_s + ENDED_S - 60)
    assert value(soon, "stepscope_run_info", run_id=folder.run_id) == 1


def test_a_run_that_ended_long_ago_is_not_exposed_when_its_folder_is_copied() -> None:
    an_exposed_run(ended_unix_ns=time.time_ns() - int(2 * ENDED_S * 1e9))
    assert samples(an_exposition()) == []


def test_scrapes_at_the_same_time_share_one_reading() -> None:
    clock_s = [0.0]
    exposition = Exposition(Supervisor(a_home()), clock_s=lambda: clock_s[0])
    assert samples(exposition) == []
    an_exposed_run()
    assert samples(exposition) == []
    clock_s[0] += SHARED_S
    assert value(exposition, "stepscope_steps_total") == 21


def test_two_runs_of_one_name_are_two_series() -> None:
    first, second = an_exposed_run("one"), an_exposed_run("two")
    edit(second, "UPDATE run SET name = 'one'")
    names = {s.labels["run"] for s in samples(an_exposition())}
    assert names == {f"one ({folder.run_id})" for folder in (first, second)}


def test_the_name_of_a_foreign_run_is_data() -> None:
    folder = an_exposed_run()
    edit(folder, "UPDATE run SET name = 'x\"} 1\nevil{a=\"\\'")
    exposed = samples(an_exposition())
    assert {s.name for s in exposed if not s.name.startswith("stepscope_")} == set()
    assert len({s.labels["run"] for s in exposed}) == 1


def test_an_unreadable_log_does_not_hide_other_runs() -> None:
    an_exposed_run("whole")
    torn = an_exposed_run("torn")
    torn.log.write_bytes(b"not a log")
    assert value(an_exposition(), "stepscope_steps_total", run="whole") == 21
    assert value(an_exposition(), "stepscope_run_state", run="torn", state="lost") == 1


def test_openmetrics_is_served_to_who_accepts_it() -> None:
    write("steady", a_home(), steps=50)
    scrape = an_exposition().scrape("application/openmetrics-text; version=1.0.0")
    assert scrape.content_type.startswith("application/openmetrics-text")
    families = openmetrics.text_string_to_metric_families(scrape.body.decode())  # type: ignore[no-untyped-call]
    assert _STEP in {family.name for family in families}


@pytest.mark.slow
def test_every_metric_of_the_grafana_dashboard_is_exposed() -> None:
    for scenario in ("leak", "oom"):
        write(scenario, a_home(), steps=2_000)
    exposed = samples(an_exposition())
    expressions = [
        t["expr"] for panel in json.loads(_GRAFANA.read_text())["panels"] for t in panel["targets"]
    ]
    used = {name for text in expressions for name in re.findall(r"stepscope_\w+", text)}
    assert len(used) > 10
    assert used <= {s.name for s in exposed}
    labels = {label for text in expressions for label in re.findall(r'(\w+)=~?"', text)}
    assert labels <= {label for s in exposed for label in s.labels}
    kinds = {
        kind
        for text in expressions
        for match in re.findall(r'kind=~"(.*?)"', text)
        for kind in match.split("|")
    }
    assert kinds <= set(EventKind)
