"""The cards above the live chart, from rows of steps."""

from typing import Any

import pytest

from dashboard import buckets
from dashboard.charts import cards
from harness.records.run import DeviceKind, StepFlag, StepRow
from tests.store_factories import a_step

GIB = 2**30


def _cards(rows: list[StepRow], **more: Any) -> dict[str, cards.Card]:
    fields: dict[str, Any] = {
        "recent": rows,
        "device": buckets.EMPTY,
        "sample": None,
        "kind": DeviceKind.CUDA,
        "limit_bytes": None,
        "missing": {},
    }
    return {card.key: card for card in cards.cards(cards.LiveCardData(**fields | more))}


def test_without_a_step_every_figure_is_missing_and_says_why() -> None:
    result = _cards([], missing={"util": "NVML is not available"})
    assert {card.value for card in result.values()} == {"n/a"}
    assert all(card.missing and card.help for card in result.values())
    assert result["util"].help == "NVML is not available"


def test_figures_leave_flagged_steps_out() -> None:
    rows = [a_step(step)._replace(step_ns=1_000_000) for step in range(20)]
    rows[3] = rows[3]._replace(step_ns=10**12, flags=StepFlag.TRANSITION)
    assert _cards(rows)["step"].value == "1.0 ms"


@pytest.mark.parametrize(("peak_gib", "tone"), [(91, "plain"), (92, "warn"), (96, "warn"), (97, "bad")])
def test_little_headroom_turns_the_note_amber_and_red_where_the_alert_does(peak_gib: int, tone: str) -> None:
    rows = [a_step(step)._replace(peak_allocated_bytes=peak_gib * GIB) for step in range(5)]
    assert _cards(rows, limit_bytes=100 * GIB)["peak"].tone == tone


@pytest.mark.parametrize(("resident_gib", "note"), [(5, "3.00 GiB other"), (1, "1.00 GiB not resident")])
def test_tensors_that_were_never_written_are_no_negative_rest(resident_gib: int, note: str) -> None:
    row = a_step(1)._replace(reserved_bytes=resident_gib * GIB, allocated_bytes=2 * GIB)
    assert _cards([row], kind=DeviceKind.CPU)["reserved"].note == note


def test_without_a_loader_the_data_wait_is_not_available() -> None:
    rows = [a_step(step)._replace(step_ns=10, data_wait_ns=0) for step in range(5)]
    card = _cards(rows)["data_wait"]
    assert card.missing
    assert card.value == "n/a"
    assert "run.steps" in card.help


def test_steps_with_an_unknown_number_of_samples_have_no_throughput() -> None:
    rows = [a_step(step)._replace(samples=0) for step in range(5)]
    card, known = _cards(rows)["step"], _cards([a_step(step) for step in range(5)])["step"]
    assert (card.value, card.note) == (known.value, "")
    assert "their number of samples is unknown" in card.help
    assert "run.steps" in card.help
    assert known.note.endswith("samples/s")


def test_between_two_readings_the_cards_of_memory_show_the_newer_one() -> None:
    rows = [a_step(step) for step in range(5)]
    rows[-1] = rows[-1]._replace(allocated_bytes=None, peak_allocated_bytes=None)
    between, before = _cards(rows), _cards(rows[:-1])
    for key in ("allocated", "reserved"):
        assert not between[key].missing
        assert (between[key].value, between[key].note) == (before[key].value, before[key].note)
    assert before["reserved"].note


def test_a_starved_run_turns_the_data_wait_amber() -> None:
    rows = [a_step(step)._replace(step_ns=10, data_wait_ns=5) for step in range(5)]
    card = _cards(rows)["data_wait"]
    assert (card.value, card.tone) == ("50 %", "warn")


@pytest.mark.parametrize(
    ("wait_ns", "note"), [(103, "103 ns"), (412_000, "412 µs"), (60_200_000_000, "1 min 00 s")]
)
def test_a_wait_has_a_unit_of_its_size_and_is_not_rounded_to_zero(wait_ns: int, note: str) -> None:
    rows = [a_step(step)._replace(step_ns=10 * wait_ns, data_wait_ns=wait_ns) for step in range(5)]
    assert _cards(rows)["data_wait"].note == note


def test_a_loss_that_is_not_finite_is_named_and_never_drawn() -> None:
    rows = [a_step(1), a_step(2, loss=None, loss_state=1)]
    card = _cards(rows)["loss"]
    assert (card.value, card.tone) == ("NaN", "bad")
    assert card.spark[-1] is None


@pytest.mark.parametrize(("readings", "note"), [(100, "steady"), (50, "steady"), (13, "")])
def test_a_single_reading_of_the_memory_shows_no_drift(readings: int, note: str) -> None:
    rows = [a_step(step)._replace(allocated_bytes=GIB if step < readings else None) for step in range(100)]
    assert _cards(rows)["allocated"].note == note


def test_a_single_step_is_named_in_the_singular() -> None:
    result = _cards([a_step(1)._replace(peak_allocated_bytes=GIB)])
    assert all("last 1 step" in result[key].help for key in ("peak", "step", "loss"))
    assert not any("1 steps" in card.help + card.note for card in result.values())


def test_a_loss_is_unchanged_or_missing_in_so_many_words() -> None:
    flat = [a_step(step)._replace(loss=0.0) for step in range(20)]
    assert (_cards(flat)["loss"].value, _cards(flat)["loss"].note) == ("0", "unchanged")
    assert _cards([row._replace(loss=None) for row in flat])["loss"].help == "no loss in the last 20 steps"
