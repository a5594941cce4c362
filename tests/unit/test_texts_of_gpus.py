"""The out-of-memory errors in the reports from real GPUs are read as on the day of the report."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.oom.error import read_error
from harness.watch.oom.errors import is_ambiguous, is_out_of_memory
from tests.gpu.journal import ResultsFile

REPORTS = sorted((Path(__file__).parents[2] / "docs/gpu").glob("*.jsonl"))
ERRORS: dict[str, type[Exception]] = {
    "OutOfMemoryError": torch.OutOfMemoryError,
    "AcceleratorError": RuntimeError,
    "RuntimeError": RuntimeError,
}


def cases() -> list[dict[str, Any]]:
    """The errors of all reports, each with what was read from it."""
    result = []
    for report in REPORTS:
        for item, rows in ResultsFile(report).read().stage("texts").values.items():
            result += [row | {"item": item} for row in rows if isinstance(row, dict) and row.get("text")]
    return result


CASES = cases()


def test_there_are_errors_of_every_kind() -> None:
    assert len({case["case"] for case in CASES}) >= 8


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['item']}: {case['case']}")
def test_an_error_of_a_gpu_is_recognized_and_its_sizes_are_read(case: dict[str, Any]) -> None:
    error = ERRORS[case["class"]](case["text"])
    assert is_out_of_memory(error)
    assert is_ambiguous(error) == case["is_ambiguous"]
    assert read_error(case["text"], case["reserved_bytes"])._asdict() == case["numbers"]
