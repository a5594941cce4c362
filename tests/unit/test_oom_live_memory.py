"""Live memory in a report: what a variable keeps through autograd, and totals with their parts."""

import pytest

from dashboard.charts.allocations import oom_lines
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import LiveCategory, LiveSite, LiveVariable, OomFacts, OomPhase
from harness.analysis.oom.text import render
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


def facts_with_parts() -> OomFacts:
    holders = (
        LiveCategory("not told apart", None, 5 * GIB),
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
    5.00 GiB  not told apart
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
        ("not told apart", ""),
        ("weights", ""),
        ("part of weights", "blocks.0"),
        ("activations", "blocks.1"),
        ("model.py:3 forward", ""),
    ]
