"""Test what is made of the facts when memory ran out: verdict, counterfactuals, JSON and text."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.fit import _cap, counterfactuals
from harness.analysis.oom.report import (
    LeakSign,
    LiveCategory,
    LiveSite,
    LiveVariable,
    OomPhase,
    OomVerdict,
    PredictedChange,
    RecentChange,
    RecentStep,
    report_from_json,
    to_json,
)
from harness.analysis.oom.text import LINES, WIDTH, render
from harness.records.memory import ProcessLimit
from harness.records.run import DeviceKind
from harness.settings.declaration import OomPolicy
from tests.oom_factories import GIB, MIB, some_facts, some_peaks

LEAK = LeakSign("allocated", "Allocated had grown by 1.70 MiB a step.", 1.7 * MIB, 6, 30 * GIB)
GROUNDS: dict[OomVerdict, dict[str, Any]] = {
    OomVerdict.SHARED_MEMORY: {
        "error": "unable to allocate shared memory(shm) for file </torch_1>: Success (0)"
    },
    OomVerdict.HOST: {"error": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 536870912"},
    OomVerdict.REFUSED: {"device_free_bytes": 20 * GIB},
    OomVerdict.OTHER_PROCESS: {"others_bytes": 20 * GIB},
    OomVerdict.PRIVATE_POOLS: {"private_free_bytes": 600 * MIB, "reserved_bytes": 80 * GIB},
    OomVerdict.OTHER_STREAM: {"waiting_bytes": 600 * MIB, "reserved_bytes": 80 * GIB},
    OomVerdict.FRAGMENTATION: {"allocated_bytes": 70 * GIB, "largest_free_bytes": 400 * MIB},
    OomVerdict.CAP: {"cap_bytes": 79 * GIB + 200 * MIB},
    OomVerdict.PROCESS_LIMIT: {
        "process_limit": ProcessLimit("ulimit -d", 80 * GIB, 80 * GIB - 50 * MIB, 200 * MIB)
    },
    OomVerdict.UNLISTED: {"allocated_bytes": 20 * GIB, "reserved_bytes": 20 * GIB + 100 * MIB},
    OomVerdict.LEAK: {"leak": LEAK},
    OomVerdict.KEPT_GRAPHS: {
        "variables": (LiveVariable("total", "train.py:9 evaluate", 60 * GIB, 900, saved_bytes=59 * GIB),),
        "calls_without_backward": 90,
    },
    OomVerdict.HUGE_REQUEST: {"error_bytes": 30 * GIB, "least_bytes": 30 * GIB, "most_bytes": 30 * GIB},
    OomVerdict.FIRST_UPDATE: {"phase": OomPhase.OPTIMIZER, "is_first_update": True},
    OomVerdict.TOO_BIG: {},
}


@pytest.mark.parametrize("verdict", OomVerdict)
def test_each_verdict_stands_on_its_own_grounds(verdict: OomVerdict) -> None:
    report = explain(some_facts(**GROUNDS[verdict]))
    assert report.verdict is verdict
    assert not [line for line in report.evidence if line.startswith("Also")]


def test_where_several_hold_the_first_is_the_verdict_and_the_others_are_said() -> None:
    report = explain(some_facts(leak=LEAK, others_bytes=20 * GIB))
    assert report.verdict is OomVerdict.OTHER_PROCESS
    assert report.evidence[-1] == (
        "Also: A leak had filled the memory: 30.0 GiB of the 80.0 GiB of Test device. "
        "Allocated had grown by 1.70 MiB a step."
    )


def test_a_leak_goes_before_the_cap_that_it_ran_into() -> None:
    facts = some_facts(**GROUNDS[OomVerdict.CAP], **GROUNDS[OomVerdict.LEAK])
    assert explain(facts).verdict is OomVerdict.LEAK


def test_a_leak_too_small_to_be_the_reason_is_said_beside() -> None:
    report = explain(some_facts(**GROUNDS[OomVerdict.CAP], leak=LEAK._replace(leaked_bytes=GIB)))
    assert report.verdict is OomVerdict.CAP
    assert "Memory leaks: Allocated had grown by 1.70 MiB a step." in report.evidence


def test_a_leak_goes_before_fewer_bytes_in_pieces() -> None:
    pieces = GROUNDS[OomVerdict.FRAGMENTATION]
    assert explain(some_facts(**pieces, leak=LEAK)).verdict is OomVerdict.LEAK
    small = LEAK._replace(leaked_bytes=GIB)
    assert explain(some_facts(**pieces, leak=small)).verdict is OomVerdict.FRAGMENTATION


def test_the_parts_of_a_limit_are_said_once() -> None:
    report = explain(some_facts(**GROUNDS[OomVerdict.CAP], **GROUNDS[OomVerdict.FIRST_UPDATE]))
    assert report.verdict is OomVerdict.CAP
    assert report.evidence[-1] == (
        "Also: The optimizer allocates its state in its first step, and it did not fit in addition to "
        "weights and gradients."
    )


def test_the_line_that_the_hunt_found_is_in_the_report() -> None:
    hunted = LEAK._replace(hunt="10 steps kept 2.50 MiB in 10 blocks allocated at train.py:8 step.")
    report = explain(some_facts(leak=hunted))
    assert "Snapshot of the leak: 10 steps kept 2.50 MiB" in render(report)


def test_of_a_leak_no_smaller_batch_is_made_a_promise() -> None:
    peaks = some_peaks((64, 20.0))
    assert not explain(some_facts(leak=LEAK, peaks=peaks, static_bytes=GIB)).counterfactuals


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (GROUNDS[OomVerdict.OTHER_PROCESS], "Other processes use 20.0 GiB of Test device; without them"),
        (GROUNDS[OomVerdict.FRAGMENTATION], "9.10 GiB were reserved but unallocated, enough for the request"),
        (GROUNDS[OomVerdict.FRAGMENTATION], "in pieces of at most 400 MiB: memory is fragmented."),
        (GROUNDS[OomVerdict.CAP], "The memory cap of 79.2 GiB was reached: 79.0 GiB were allocated and 512"),
        (GROUNDS[OomVerdict.HUGE_REQUEST], "A single request for 30.0 GiB is 38 % of the 80.0 GiB of Test"),
        (
            {"error_bytes": 90 * GIB, "least_bytes": 90 * GIB, "most_bytes": 90 * GIB},
            "A single request for 90.0 GiB exceeds the 80.0 GiB of Test device.",
        ),
        ({}, "Training with batch 64 needs more than the 80.0 GiB of Test device: 79.0 GiB were allocated"),
        ({"phase": OomPhase.BUILD}, "Building the model needs more than the 80.0 GiB"),
        ({"phase": OomPhase.SETUP}, "The run needs more than the 80.0 GiB"),
        ({"device_total_bytes": None}, "Training with batch 64 needs more than is available: 79.0 GiB"),
        (
            {"allocated_bytes": None, "error_bytes": None, "least_bytes": None, "most_bytes": None},
            "allocated memory and the size of the request are not known.",
        ),
    ],
)  # fmt: skip
def test_a_verdict_is_one_sentence_with_its_numbers(values: dict[str, Any], words: str) -> None:
    assert words in explain(some_facts(**values)).why


@pytest.mark.parametrize(
    "values",
    [
        {"others_bytes": 20 * GIB, "device_free_bytes": 550 * MIB},
        {"others_bytes": 50 * MIB, "device_free_bytes": 500 * MIB},
        {"others_bytes": 300 * MIB, "device_free_bytes": 100 * MIB},
        {"private_free_bytes": 400 * MIB},
        {"waiting_bytes": 400 * MIB},
        {"allocated_bytes": 70 * GIB, "largest_free_bytes": 600 * MIB},
        {"reserved_bytes": 79 * GIB + 520 * MIB},
        {"cap_bytes": 90 * GIB},
        {"cap_bytes": 79 * GIB + 700 * MIB},
        {"phase": OomPhase.OPTIMIZER},
    ],
)
def test_what_is_nearly_so_is_not_said(values: dict[str, Any]) -> None:
    assert explain(some_facts(**values)).verdict is OomVerdict.TOO_BIG


def test_on_the_cpu_free_memory_in_the_heap_is_no_fragmentation() -> None:
    facts = some_facts(DeviceKind.CPU, **GROUNDS[OomVerdict.FRAGMENTATION])
    assert explain(facts).verdict is OomVerdict.TOO_BIG


def test_under_a_cap_a_cpu_with_room_can_only_have_met_the_cap() -> None:
    facts = some_facts(
        DeviceKind.CPU, cap_bytes=2 * GIB, allocated_bytes=GIB, reserved_bytes=GIB, device_free_bytes=9 * GIB
    )
    assert explain(facts).verdict is OomVerdict.CAP


CAPPED: dict[str, Any] = {
    "cap_bytes": 307 * MIB,
    "allocated_bytes": 1 * MIB,
    "reserved_bytes": 305 * MIB,
    "free_bytes": 304 * MIB,
    "split_free_bytes": None,
    "largest_free_bytes": None,
    "cap_left_bytes": 0,
    "device_free_bytes": 20 * GIB,
    "device_total_bytes": 24 * GIB,
}


def test_under_a_cap_on_the_cpu_a_heap_of_holes_is_fragmentation() -> None:
    nothing: dict[str, Any] = {"error_bytes": None, "least_bytes": None, "most_bytes": None}
    report = explain(some_facts(DeviceKind.CPU, **CAPPED, **nothing))
    assert report.verdict is OomVerdict.FRAGMENTATION
    assert "304 MiB were free in the heap" in report.why
    few = CAPPED | {"reserved_bytes": 60 * MIB, "cap_left_bytes": 0}
    assert explain(some_facts(DeviceKind.CPU, **few)).verdict is OomVerdict.CAP


@pytest.mark.parametrize("size", [64 << 10, 128 << 10, None])
@pytest.mark.parametrize("maps_large_blocks", [False, True])
def test_against_holes_of_the_heap_large_blocks_are_to_be_mapped_unless_they_are(
    size: int | None, maps_large_blocks: bool
) -> None:
    request: dict[str, Any] = {"error_bytes": size, "least_bytes": size, "most_bytes": size}
    facts = some_facts(DeviceKind.CPU, **CAPPED, **request, maps_large_blocks=maps_large_blocks)
    texts = [one.text for one in explain(facts).counterfactuals if "MALLOC_MMAP_THRESHOLD_" in one.text]
    assert len(texts) == (size == 128 << 10 and not maps_large_blocks)


def test_without_a_step_half_of_the_batch_is_to_be_tried_next_and_no_more_is_said() -> None:
    (statement,) = explain(some_facts(batch_size=50)).counterfactuals
    assert statement.text == "Which batch fits is not known; the next to try is half of this one, batch 25."
    assert statement.basis == "no step with all of the optimizer's state has a peak"


@pytest.mark.parametrize(
    ("request_gib", "next_one"),
    [
        (100, "is half of this one, batch 25."),
        (
            200,
            "The request alone is 2.7 times the 75.0 GiB that the limit leaves beside the model: if it "
            "grows with the batch, the next to try is batch 12.",
        ),
        (75 * 64, "if it grows with the batch, not even batch 1 fits."),
    ],
)
def test_half_of_the_batch_is_named_only_where_its_request_would_fit(request_gib: int, next_one: str) -> None:
    size = request_gib * GIB
    request: dict[str, Any] = {"error_bytes": size, "least_bytes": size, "most_bytes": size}
    holders = (LiveCategory("weights", None, 5 * GIB), LiveCategory("weights", "head", 5 * GIB))
    statements = counterfactuals(
        some_facts(batch_size=50, holders=holders, **request), OomVerdict.TOO_BIG, ()
    )
    assert statements[0].text.endswith(next_one)


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 1},
        {"batch_size": None},
        {"phase": OomPhase.DATA},
        {"leak": LEAK},
        {"phase": OomPhase.OPTIMIZER},
    ],
)
def test_nothing_is_said_about_other_settings_without_evidence(values: dict[str, Any]) -> None:
    assert explain(some_facts(**values)).counterfactuals == ()


def test_a_prediction_is_quoted_as_one_and_only_where_it_saves_something() -> None:
    predicted = (PredictedChange("AMP bf16", 10 * GIB, 3 * GIB), PredictedChange("SGD", 13 * GIB, 0))
    (message,) = explain(some_facts(batch_size=None), predicted).counterfactuals
    assert message.text == "AMP bf16 would save 3.00 GiB: a peak of 10.0 GiB."
    assert message.basis == "predicted, not measured"


@pytest.mark.parametrize("verdict", OomVerdict)
def test_expandable_segments_are_advised_against_fragmentation_alone(verdict: OomVerdict) -> None:
    message = explain(some_facts(**GROUNDS[verdict])).counterfactuals
    assert any("expandable_segments" in c.text for c in message) is (verdict is OomVerdict.FRAGMENTATION)


def test_a_larger_cap_is_named_only_where_the_device_has_it() -> None:
    capped = GROUNDS[OomVerdict.CAP] | {"batch_size": None}
    (message,) = explain(some_facts(**capped)).counterfactuals
    assert message.text.startswith("A cap above 79.6 GiB would have sufficed for this request")
    huge: dict[str, Any] = {"error_bytes": 90 * GIB, "least_bytes": 90 * GIB, "most_bytes": 90 * GIB}
    (none,) = explain(some_facts(**capped, **huge)).counterfactuals
    assert none.text.startswith("No cap would have sufficed")


def test_a_cap_that_would_have_sufficed_is_not_stated_as_the_one_that_was_reached() -> None:
    sizes: dict[str, Any] = {"reserved_bytes": 511 * MIB, "most_bytes": MIB + 2**18, "cap_bytes": 512 * MIB}
    (message,) = _cap(some_facts(**sizes), OomVerdict.CAP)
    assert message.text.startswith("A slightly larger cap would have sufficed for this request")


def test_where_something_else_took_the_rest_of_the_cap_no_larger_one_is_named() -> None:
    facts = some_facts(**GROUNDS[OomVerdict.CAP])
    assert facts.memory.reserved_bytes is not None
    roomy = facts.memory.reserved_bytes + (facts.request.most_bytes or 0) + GIB
    facts = facts._replace(memory=facts.memory._replace(cap_bytes=roomy))
    assert not _cap(facts, OomVerdict.CAP)


def a_full_report() -> Any:
    facts = some_facts(
        error_bytes=20 * MIB,
        least_bytes=MIB,
        most_bytes=10 * MIB,
        others_bytes=GIB,
        device_free_bytes=0,
        note="A note about how it was found.",
        holders=(LiveCategory("weights", None, 9 * GIB), LiveCategory("optimizer state", "blocks.1", 2 * GIB))
        * 9,
        sites=(LiveSite("model.py:3 forward", GIB, 1), LiveSite("model.py:4 forward", MIB, 12)) * 9,
        steps=tuple(RecentStep(n, 45_000_000, GIB, 2 * GIB, 3 * GIB) for n in range(70, 120)),
        peaks=some_peaks((16, 20.0), (32, 36.0)),
        change=RecentChange(120, 0, "Batch size 32 → 64 (loader rebuilt).", "c1"),
        leak=LEAK,
    )
    return explain(facts, (PredictedChange("AMP bf16", 10 * GIB, 3 * GIB),), "Rolled back.")


def test_a_report_travels_as_strict_json() -> None:
    report = a_full_report()
    text = to_json(report)
    assert report_from_json(text) == report
    assert "\n" not in text
    assert json.loads(text)["facts"]["request"]["phase"] == "forward"


def test_a_report_from_before_some_fields_were_kept_is_read() -> None:
    message = json.loads(to_json(a_full_report()))
    for field in ("since_step", "leaked_bytes", "hunt"):
        del message["facts"]["leak"][field]
    del message["facts"]["memory"]["cap_left_bytes"]
    report = report_from_json(json.dumps(message))
    assert report.facts.leak is not None
    assert (report.facts.leak.leaked_bytes, report.facts.memory.cap_left_bytes) == (None, None)


def test_a_report_with_the_names_of_an_earlier_version_is_read() -> None:
    report = a_full_report()
    message = json.loads(to_json(report))
    facts = message["facts"]
    facts["asked"], facts["held"] = facts.pop("request"), facts.pop("memory")
    assert report_from_json(json.dumps(message)) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"facts": 1}', "null"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        report_from_json(text)


def test_the_whole_of_it_in_one_line() -> None:
    sentence = a_full_report().sentence
    assert sentence.startswith("Out of memory in step 120: Other processes use 1.00 GiB")
    assert sentence.endswith("Rolled back.")


def test_the_text_is_short_enough_to_be_pasted_and_has_everything_that_matters() -> None:
    text = render(a_full_report())
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    for words in (
        "Out of memory in step 120 on Test device: another process",
        "Request     1.00 MiB to 10.0 MiB (in the error: 20.0 MiB)",
        "Module      blocks.3.mlp (FeedForward)",
        "Line        harness/models/transformer.py:31 forward",
        "            return self.down(gelu(self.up(x)))",
        "batch 64, accumulation 1, AMP off, checkpointing off",
        "- Settings were changed before step 120 (the failed step was its first): Batch size 32",
        "- Batch 32 peaked at 36.0 GiB. (measured in this run, 40 steps)",
        "optimizer state, blocks.1",
        "12 tensors allocated at model.py:4 forward",
        "Recent steps (the last 8 of 50):",
        "         119     45.0 ms    1.00 GiB    2.00 GiB    3.00 GiB",
    ):
        assert words in text, text


def test_the_text_leaves_out_what_is_not_known() -> None:
    text = render(explain(some_facts(module=None, site=None, stack=(), code=None)))
    assert "Module      n/a" in text
    assert "Largest live allocations" not in text
    assert "Recent steps" not in text
    assert "used by other processes" not in text


def test_the_docs_name_every_verdict_in_its_order_and_every_policy() -> None:
    text = (Path(__file__).parents[2] / "docs/out-of-memory.md").read_text(encoding="utf-8")
    places = [text.find(f"\n| {verdict.value} |") for verdict in OomVerdict]
    assert -1 not in places
    assert places == sorted(places)
    assert all(f"\n| {policy.value} |" in text for policy in OomPolicy)


def test_a_rise_that_was_only_watched_is_the_likely_leak_where_it_took_a_quarter() -> None:
    watched = LEAK._replace(is_certain=False)
    report = explain(some_facts(**GROUNDS[OomVerdict.CAP], leak=watched))
    assert report.verdict is OomVerdict.LEAK
    assert "A leak had most likely filled the memory" in report.why
    small = explain(some_facts(**GROUNDS[OomVerdict.CAP], leak=watched._replace(leaked_bytes=GIB)))
    assert small.verdict is OomVerdict.CAP
    assert not any("leak" in sentence for sentence in small.evidence)


def test_what_lies_outside_a_capped_heap_is_said_with_what_was_allocated() -> None:
    held = {
        "allocated_bytes": 3 * MIB,
        "reserved_bytes": 4 * MIB,
        "cap_bytes": 355 * MIB,
        "cap_left_bytes": 0,
    }
    facts = some_facts(DeviceKind.CPU, **held, device_free_bytes=20 * GIB)
    assert (
        "3.00 MiB allocated, 1.00 MiB free in the heap in pieces, 351 MiB outside the heap; 512 MiB"
        in explain(facts).why
    )


def test_under_a_cap_what_the_device_had_free_is_no_evidence() -> None:
    report = explain(some_facts(**GROUNDS[OomVerdict.CAP]))
    assert not any("The device had" in sentence for sentence in report.evidence)
