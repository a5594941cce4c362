"""The report of `make gpu-check`: which file it continues, and what its page says."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu import sections
from tests.gpu.container import container_signs
from tests.gpu.journal import ResultsFile, StageResults, StageState
from tests.gpu.needs import needs
from tests.gpu.page import SECTIONS, page
from tests.gpu.report import choose_file, chosen_stages, failed_tests, slug, write_page
from tests.gpu.stages import STAGES, budget_s
from tests.gpu.worth_table import worth_table

FACTS: dict[str, Any] = {
    "when": "2026-01-02 03:04",
    "card": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 80 * 2**30,
    "multiprocessors": 132,
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "cudnn": 91000,
    "driver": "580.159.04",
    "python": "3.12.3",
    "kernel": "6.18",
    "container": ["/.dockerenv exists"],
    "commit": "abc1234",
    "seed": 42,
    "stages": ["texts"],
}
DEFAULT = {"step_ms": 100.0, "peak_bytes": 2.0**33, "speed": 1.0, "speed_low": 1.0, "speed_high": 1.0}


@pytest.fixture
def results(tmp_path: Path) -> ResultsFile:
    return ResultsFile(tmp_path / "nvidia-h100-80gb-hbm3-20260102.jsonl")


def _section(text: str, title: str) -> str:
    return text.partition(f". {title}\n")[2].partition("\n## ")[0]


def test_all_stages_fit_into_twenty_minutes_and_what_may_fail_into_ten() -> None:
    assert budget_s() <= 20 * 60
    assert list(SECTIONS) == [stage.key for stage in STAGES]
    in_order = sorted(STAGES, key=lambda stage: stage.rank)
    assert sum(stage.budget_s for stage in in_order[:8]) <= 570, "all but prediction, worth and recordings"


def test_a_page_without_results_claims_nothing(results: ResultsFile) -> None:
    results.session(FACTS)
    text = page(results.read())
    for stage in STAGES:
        assert "unverified: not run" in _section(text, stage.title)
    assert "## For the README\n\nunverified" in text


def test_the_head_names_the_card_its_software_and_the_seed(results: ResultsFile) -> None:
    results.session(FACTS)
    text = page(results.read())
    assert text.startswith("# NVIDIA H100 80GB HBM3, 2026-01-02\n")
    for words in (
        "seed 42",
        "torch 2.11.0+cu130",
        "driver 580.159.04",
        "commit abc1234",
        "/.dockerenv exists",
    ):
        assert words in text


def test_a_stage_that_died_and_an_item_that_did_are_named(results: ResultsFile) -> None:
    results.session(FACTS)
    results.state("overflow", StageState.DIED, "killed by SIGABRT", 3)
    results.failure("worth", "mlp", "killed by SIGSEGV")
    text = write_page(results).read_text(encoding="utf-8")
    assert "**died**, 0 items measured: killed by SIGABRT" in text
    assert "- **mlp ended its process**: killed by SIGSEGV" in text


def test_a_text_stands_as_it_came_with_what_is_read_from_it() -> None:
    text = "CUDA out of memory. Tried to allocate 512.00 MiB."
    row = {
        "case": "cap",
        "class": "OutOfMemoryError",
        "text": text,
        "is_out_of_memory": True,
        "is_ambiguous": False,
        "allocator_failed": True,
        "reserved_bytes": 2**20,
        "numbers": {"requested_bytes": 2**29, "total_bytes": None},
    }
    none = {"case": "cuDNN on a full card", "class": None, "text": None}
    problem = {"problem": "unshare is not installed"}
    result = StageResults({"container": [], "as it is": [row, none], "in a PID namespace": [problem]})
    lines = "\n".join(sections.texts(result))
    assert f"```\nOutOfMemoryError: {text}\n```" in lines
    assert "recognized as out of memory; read: requested 512 MiB; reserved when it failed: 1.00 MiB." in lines
    assert "cuDNN on a full card: n/a, no error was raised." in lines
    assert "n/a: unshare is not installed" in lines


def test_references_that_python_does_not_count_are_not_available() -> None:
    row = {"calls": 1000, "before": 2**32 - 1, "after": 2**32 - 1, "blocks": 300}
    assert "immortal" in "".join(sections.refcount(StageResults({"False": row | {"is_immortal": True}})))
    leaking = row | {"before": 100, "after": 2100, "is_immortal": False}
    assert "+2.00 per call" in "".join(sections.refcount(StageResults({"False": leaking})))


def _prediction(error_pct: float) -> dict[str, Any]:
    measured = 10**9
    predicted = round(measured * (1 + error_pct / 100))
    reserved = {"predicted_reserved_bytes": None, "measured_reserved_bytes": None}
    return {"predicted_bytes": predicted, "measured_bytes": measured, **reserved}


def test_predictions_are_summed_up_by_mean_band_and_the_worst_ten() -> None:
    rows = {f"case {n}": _prediction(error_pct=n - 30) for n in range(60)}
    rows["odd"] = {"left_out": "no prediction: unknown"}
    text = "\n".join(sections.prediction(StageResults(rows)))
    assert "60 configurations: mean absolute error of the allocated peak 15.0 % (mean -0.5 %)" in text
    assert "54 of 60 between -27.0 and +26.0 %" in text
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| case")] == [
        f"case {n}" for n in (0, 1, 59, 2, 58, 3, 57, 4, 56, 5)
    ]
    assert "- odd: no prediction: unknown" in text


def _comparison(**variants: Any) -> dict[str, Any]:
    rows = {"default": DEFAULT | {"memory": 1.0}, **variants}
    return {"variants": rows, "rounds": 3, "warm_up_s": {}, "batch_size": 64, "preset_batch_size": 64}


def test_the_table_for_the_readme_holds_each_setting_against_its_default(results: ResultsFile) -> None:
    results.session(FACTS)
    bf16 = DEFAULT | {"speed": 2.412, "memory": 0.618}
    results.value("worth", "transformer", _comparison(**{"AMP bf16": bf16, "AMP fp16": {"refused": "no"}}))
    results.value("worth", "lstm", _comparison() | {"batch_size": 16})
    results.value("compile", "transformer", {"problem": "needs transformers"})
    table = worth_table(results.read())
    (transformer,) = (line for line in table if line.startswith("| transformer"))
    assert transformer.startswith("| transformer | 100 ms, 8.00 GiB | 2.41 × (0.62 ×) | n/a |  |")
    assert any(line.startswith("| lstm (batch 16 of 64) |") for line in table)
    widths = {line.count("|") for line in table if line.startswith("|")}
    assert len(widths) == 1


def test_a_call_continues_the_report_of_the_same_card_and_torch(results: ResultsFile) -> None:
    results.session(FACTS)
    folder = results.path.parent
    assert choose_file(folder, FACTS, False) == results.path
    assert choose_file(folder, FACTS | {"torch": "2.13"}, False) != results.path
    assert choose_file(folder, FACTS | {"card": "NVIDIA H200"}, False).name.startswith("nvidia-h200-")
    assert choose_file(folder, FACTS, True) != results.path


def test_a_report_that_is_complete_is_not_continued_on_another_day(results: ResultsFile) -> None:
    results.session(FACTS)
    for stage in STAGES:
        results.state(stage.key, StageState.FINISHED, "", 1)
    assert choose_file(results.path.parent, FACTS, False) != results.path


def test_stages_by_name_run_anew_and_without_names_what_is_left(results: ResultsFile) -> None:
    results.value("texts", "cap", 1)
    results.state("texts", StageState.FINISHED, "", 1)
    assert [stage.key for stage in chosen_stages(None, results)] == [
        stage.key for stage in STAGES if stage.key != "texts"
    ]
    assert [stage.key for stage in chosen_stages(["texts"], results)] == ["texts"]
    assert results.read().stage("texts").values == {}


def test_a_cards_name_makes_a_file_name() -> None:
    assert slug("NVIDIA GeForce RTX 4090 (24 GB)") == "nvidia-geforce-rtx-4090-24-gb"


def test_a_container_is_told_by_its_signs(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    assert container_signs(tmp_path, {}) == []
    (tmp_path / ".dockerenv").touch()
    (tmp_path / "proc/1").mkdir()
    (tmp_path / "proc/1/cgroup").write_text("0::/kubepods.slice/pod1\n", encoding="utf-8")
    (tmp_path / "proc/self/ns/pid").unlink()
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    assert container_signs(tmp_path, {"container": "podman"}) == [
        "/.dockerenv exists",
        "container=podman",
        "/proc/1/cgroup names kubepods",
        "a PID namespace other than the machine's",
    ]


@pytest.mark.long
def test_what_has_to_be_brought_along_is_neither_torch_nor_the_dashboards() -> None:
    names = {line.partition("==")[0] for line in needs()}
    assert {"pydantic", "pydantic-core", "nvidia-ml-py", "psutil", "numpy", "platformdirs", "pytest"} <= names
    assert names.isdisjoint({"torch", "streamlit", "plotly", "playwright", "pandas"})


def test_only_tests_that_failed_run_anew(results: ResultsFile) -> None:
    for name, outcome in (("good", "passed"), ("bad", "failed"), ("absent", "skipped")):
        results.value("tests", name, {"outcome": outcome, "figures": [], "reason": ""})
    results.failure("tests", "crashed", "killed by SIGSEGV")
    results.state("tests", StageState.FINISHED, "", 1.0)
    again = failed_tests(results.read())
    assert again == ["bad", "crashed"]
    results.forget("tests", again)
    assert results.read().stage("tests").done == {"good", "absent"}
    assert "tests" in [stage.key for stage in chosen_stages(None, results)]


def test_the_parts_of_the_overhead_are_a_line_below_the_lengths() -> None:
    row = {"launch_us": 7.31, "event_us": 9.0, "loss_us": 35.2, "memory_us": 11.7}
    text = "\n".join(sections.events(StageResults(values={"calls on a busy stream": row})))
    assert "a small kernel 7.3 µs, an event 9.0 µs, the copy of a loss 35.2 µs, a reading 11.7 µs." in text
