"""Live memory in a report: what a variable keeps through autograd, and totals with their parts."""

import pytest

from dashboard.charts.allocations import oom_lines
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import (
    LiveCategory,
    LiveSite,
    LiveVariable,
    OomFacts,
    OomPhase,
    OomVerdict,
)
from harness.analysis.oom.text import render
from harness.records.memory import ProcessLimit
from harness.records.run import DeviceKind
from tests.oom_factories import GIB, MIB, some_facts

_GRAPHS = ", of which the autograd graphs of its tensors keep 9.00 GiB saved for a backward pass"
_ADVICE = ": where none follows, call the model under torch.no_grad(), or keep detached tensors"


@pytest.mark.parametrize(
    ("phase", "saved_gib", "clause"),
    [
        (OomPhase.BETWEEN, 9, _GRAPHS + _ADVICE),
        # A step's own graph is needed.
        (OomPhase.FORWARD, 9, _GRAPHS),
        (OomPhase.BETWEEN, 4, ""),
    ],
)
def test_what_the_graphs_of_kept_outputs_keep_is_named(phase: OomPhase, saved_gib: int, clause: str) -> None:
    variable = LiveVariable("outs", "train.py:9 evaluate", 10 * GIB, 754, saved_bytes=saved_gib * GIB)
    report = explain(some_facts(variables=(variable,), phase=phase))
    sentence = f"The variable outs in train.py:9 evaluate held 10.0 GiB, in 754 objects{clause}."
    assert sentence in report.evidence
    assert f"10.0 GiB  outs in train.py:9 evaluate, 754 objects, {saved_gib}.00 GiB by autograd" in render(
        report
    )


@pytest.mark.parametrize(("saved_mib", "is_said"), [(3, True), (0, False)])
def test_graphs_of_which_a_part_was_read_are_named_however_small_the_part(
    saved_mib: int, *, is_said: bool
) -> None:
    variable = LiveVariable("outs", "train.py:9 evaluate", 4 * MIB, 14_038, False, saved_mib * MIB)
    said = [one for one in explain(some_facts(variables=(variable,))).evidence if "outs" in one]
    sentence = (
        "The variable outs in train.py:9 evaluate held at least 4.00 MiB, in 14,038 objects, of which the "
        "autograd graphs of its tensors keep at least 3.00 MiB saved for a backward pass."
    )
    assert said == ([sentence] if is_said else [])


# Most of the heap is free in pieces, and a variable keeps more than that through autograd.
_KEPT = LiveVariable("total", "train.py:21 evaluate", 245 * MIB, 2_569, saved_bytes=242 * MIB)
_HOLES: dict[str, object] = {
    "allocated_bytes": 305 * MIB,
    "reserved_bytes": 482 * MIB,
    "process_limit": ProcessLimit("ulimit -d", 800 * MIB, 799 * MIB, 240 * MIB),
    "device_free_bytes": 22 * GIB,
    "device_total_bytes": 24 * GIB,
    "error_bytes": MIB,
    "least_bytes": MIB,
    "most_bytes": MIB,
}


@pytest.mark.parametrize("phase", [OomPhase.FORWARD, OomPhase.EVALUATION])
def test_graphs_that_no_backward_pass_frees_are_the_cause_and_not_the_holes_between_them(
    phase: OomPhase,
) -> None:
    facts = some_facts(DeviceKind.CPU, phase=phase, variables=(_KEPT,), calls_without_backward=425, **_HOLES)
    report = explain(facts)
    assert report.verdict is OomVerdict.KEPT_GRAPHS
    assert report.why == (
        "The autograd graphs behind the variable total in train.py:21 evaluate kept 242 MiB of the 560 MiB "
        "that the limit of the process (ulimit -d) of 800 MiB left to the run for a backward pass, and none "
        "has followed the last 425 calls of the model: call it under torch.no_grad(), or keep values without "
        "a graph (loss.item(), output.detach())."
    )
    assert not report.counterfactuals
    assert not any("The variable" in one for one in report.evidence)


@pytest.mark.parametrize(
    "values",
    [
        # As usual in this run: rollouts, or the micro-batches of a step.
        {"calls_without_backward": 0},
        # The batch itself fills the memory.
        {"variables": (_KEPT._replace(saved_bytes=100 * MIB),)},
        {"variables": ()},
    ],
)
def test_other_graphs_are_not_the_cause(values: dict[str, object]) -> None:
    facts = some_facts(DeviceKind.CPU, variables=(_KEPT,), calls_without_backward=425, **_HOLES)
    assert explain(facts._replace(**values)).verdict is OomVerdict.FRAGMENTATION  # type: ignore[arg-type]


@pytest.mark.parametrize(("saved_mib", "is_cause"), [(70, True), (40, False)])
def test_a_part_of_many_small_graphs_is_the_cause_from_a_tenth_of_the_limit_on(
    saved_mib: int, *, is_cause: bool
) -> None:
    part = LiveVariable("outs", "train.py:21 evaluate", 75 * MIB, 14_038, False, saved_mib * MIB)
    values = _HOLES | {"reserved_bytes": 305 * MIB}
    report = explain(some_facts(DeviceKind.CPU, variables=(part,), calls_without_backward=9, **values))
    assert (report.verdict is OomVerdict.KEPT_GRAPHS) is is_cause
    assert ("kept at least 70.0 MiB of" in report.why) is is_cause


def test_an_evaluation_that_does_not_fit_is_not_called_training() -> None:
    report = explain(some_facts(phase=OomPhase.EVALUATION, split_free_bytes=0))
    assert report.why.startswith("Evaluation needs more than ")


def facts_with_parts() -> OomFacts:
    holders = (
        LiveCategory("unattributed", None, 5 * GIB),
        LiveCategory("weights", None, 3 * GIB),
        LiveCategory("weights", "blocks.0", 2 * GIB),
        # Without a total of its own.
        LiveCategory("activations", "blocks.1", GIB),
    )
    variable, site = LiveVariable("kept", "train.py:14 train", GIB, 3), LiveSite("model.py:3 forward", GIB, 2)
    return some_facts(holders=holders, sites=(site,), variables=(variable,))


def test_a_part_stands_below_its_total_in_another_column() -> None:
    text = render(explain(facts_with_parts()))
    expected = """
Largest live allocations:
    5.00 GiB  unattributed
    3.00 GiB  weights
       of it  2.00 GiB in blocks.0
    1.00 GiB  activations, blocks.1
    of these  1.00 GiB in 2 tensors allocated at model.py:3 forward

Largest variables of the script, part of the above:
    1.00 GiB  kept in train.py:14 train, 3 objects
"""
    assert expected in text + "\n"


def test_on_the_page_a_part_is_called_one() -> None:
    lines = [(line.what, line.where) for line in oom_lines(facts_with_parts())]
    assert lines == [
        ("variable kept", "train.py:14 train"),
        ("unattributed", ""),
        ("weights", ""),
        ("part of weights", "blocks.0"),
        ("activations", "blocks.1"),
        ("model.py:3 forward", ""),
    ]
