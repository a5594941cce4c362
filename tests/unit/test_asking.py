"""Asking for predictions: a child process that answers, dies, hangs or babbles; the cache; the advice."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.predict import cache as cache_module
from harness.predict.__main__ import answering
from harness.predict.answer import Advice, Impossible, Prediction, Target, from_json
from harness.predict.asking import RETRY_S, Predictor
from harness.predict.cache import prediction_cache
from harness.predict.process import AnsweringProcess
from harness.predict.question import Question
from harness.records.run import DeviceKind
from harness.settings import Settings
from harness.settings.resolve import resolve
from tests.supervision import until
from tests.unit.test_prediction import a_prediction

pytestmark = pytest.mark.slow

_CHILD = """
import json, os, sys, time
from harness.predict.answer import *
from harness.records.run import DeviceKind

def answer(line):
    values, kind, _ = json.loads(line)
    batch = values["batch_size"]
    how = {how!r}
    with open({log!r}, "a") as log:
        log.write(f"{{batch}} {{values['amp']}} {{values['activation_checkpointing']}}\\n")
    if how == "dies" or (how == "dies once" and open({log!r}).read().count("\\n") == 1):
        os._exit(7)
    if how == "is killed":
        os.kill(os.getpid(), 9)
    if how == "hangs":
        time.sleep(60)
    if how == "babbles":
        return "hello"
    each = 4 if values["amp"] == "off" else 2
    each = 1 if values["activation_checkpointing"] else each
    peak = 1000 + each * batch
    parts = (PartBytes(MemoryCategory.WEIGHTS, 1000), PartBytes(MemoryCategory.ACTIVATIONS, peak - 1000))
    return to_json(
        Prediction(DeviceKind(kind), peak, None, None, parts, "backward", 1000, 0, "", (), ())
    )

for line in sys.stdin:
    print(answer(line), flush=True)
    if {how!r} == "leaves":
        break
"""


class ChildProcess:
    """A predictor over a scripted child process, and the questions that the child received."""

    def __init__(self, folder: Path, how: str, home: Path | None = None, timeout_s: float = 60.0) -> None:
        self._log = folder / "asked"
        self._log.touch()
        script = _CHILD.format(how=how, log=str(self._log))
        self.now_s = 0.0
        process = AnsweringProcess([sys.executable, "-P", "-c", script])
        self.predictor = Predictor(home, process, lambda: self.now_s, timeout_s)

    @property
    def questions(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def open_predictors() -> Iterator[list[Predictor]]:
    predictors: list[Predictor] = []
    yield predictors
    for predictor in predictors:
        predictor.close()


@pytest.fixture
def children(tmp_path: Path, open_predictors: list[Predictor]) -> "type[_Factory]":
    _Factory.folder, _Factory.open_predictors = tmp_path, open_predictors
    return _Factory


class _Factory:
    folder: Path
    open_predictors: list[Predictor]

    @classmethod
    def of(cls, how: str = "answers", home: Path | None = None, timeout_s: float = 60.0) -> ChildProcess:
        made = ChildProcess(cls.folder, how, home, timeout_s)
        cls.open_predictors.append(made.predictor)
        return made


def settings(**values: object) -> Settings:
    return resolve({"model": "transformer", "batch_size": 100, **values})


def target(memory_bytes: int | None = None) -> Target:
    return Target(DeviceKind.CPU, "the CPU", memory_bytes)


def reason(answer: object) -> str:
    assert isinstance(answer, Impossible), answer
    return answer.reason


def test_asking_never_waits_and_the_answer_is_there_later(children: type[_Factory]) -> None:
    predictor = children.of().predictor
    assert predictor.request(settings(), target()) is None
    answer = predictor.wait(settings(), target())
    assert isinstance(answer, Prediction)
    assert answer.peak_allocated_bytes == 1400
    assert predictor.request(settings(), target()) == answer


def test_what_does_not_change_the_answer_is_not_asked_again(children: type[_Factory]) -> None:
    child = children.of()
    for changes in ({}, {"learning_rate": 0.5}, {"seed": 3}, {"max_steps": 7}, {"memory_cap_gib": 1.0}):
        child.predictor.wait(settings(**changes), target())
    for accumulation in (2, 8):
        child.predictor.wait(settings(grad_accumulation=accumulation), target())
    assert len(child.questions) == 2


def test_answers_outlive_the_predictor_in_the_home(children: type[_Factory], tmp_path: Path) -> None:
    first = children.of(home=tmp_path / "home").predictor.wait(settings(), target())
    later = children.of("dies", home=tmp_path / "home")
    assert later.predictor.request(settings(), target()) == first
    assert len(later.questions) == 1


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b'{"target": "cpu"}'])
def test_a_damaged_file_is_as_good_as_none(text: bytes, tmp_path: Path) -> None:
    cache = prediction_cache(tmp_path)
    cache.put("key", a_prediction())
    assert cache.get("key") == a_prediction()
    (tmp_path / "predictions" / "key.json").write_bytes(text)
    assert cache.get("key") is None
    cache.put("key", a_prediction())
    assert cache.get("key") == a_prediction()


def test_a_home_that_cannot_be_written_is_done_without(children: type[_Factory], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = children.of(home=tmp_path / "file").predictor.wait(settings(), target())
    assert isinstance(answer, Prediction)


def test_the_oldest_files_make_room(
    children: type[_Factory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MOST_FILES", 3)
    predictor = children.of(home=tmp_path).predictor
    for batch in range(1, 7):
        predictor.wait(settings(batch_size=batch), target())
    files = list((tmp_path / "predictions").iterdir())
    assert len(files) == 3
    assert Question.of(settings(batch_size=6), target()).key + ".json" in {file.name for file in files}


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("dies", "exited with code 7 before it had a result"),
        ("is killed", "was killed by SIGKILL; the machine may have run out of memory"),
        ("babbles", "returned an unreadable result"),
    ],
)
def test_a_child_that_fails_is_told_of_in_a_sentence(
    children: type[_Factory], how: str, sentence: str
) -> None:
    assert sentence in reason(children.of(how).predictor.wait(settings(), target()))


def test_a_child_that_hangs_is_given_up(children: type[_Factory]) -> None:
    child = children.of("hangs", timeout_s=0.5)
    assert "after 0 s" in reason(child.predictor.wait(settings(), target()))


def test_a_failure_is_not_tried_again_at_once_but_later(children: type[_Factory]) -> None:
    child = children.of("dies once")
    for _ in range(3):
        assert "code 7" in reason(child.predictor.wait(settings(), target()))
    assert len(child.questions) == 1
    child.now_s += RETRY_S
    assert isinstance(child.predictor.wait(settings(), target()), Prediction)


def test_a_child_that_left_for_idleness_is_started_again(children: type[_Factory]) -> None:
    child = children.of("leaves")
    for batch in (1, 2, 3):
        assert isinstance(child.predictor.wait(settings(batch_size=batch), target()), Prediction)


def test_a_command_that_cannot_be_started_is_told_of() -> None:
    with Predictor(None, AnsweringProcess(["/nonexistent/python"])) as predictor:
        assert "could not be started" in reason(predictor.wait(settings(), target()))


def test_settings_that_do_not_fit_each_other_are_refused_without_a_child(children: type[_Factory]) -> None:
    child = children.of()
    answer = child.predictor.request(settings(data="digits"), target())
    assert "trains on text" in reason(answer)
    assert child.predictor.advise(settings(data="digits"), target()) is None
    assert not child.questions


def test_a_closed_predictor_computes_nothing(children: type[_Factory]) -> None:
    predictor = children.of().predictor
    predictor.close()
    assert isinstance(predictor.request(settings(), target()), Impossible)


def advice(child: ChildProcess, memory_bytes: int | None, **values: object) -> Advice:
    result = child.predictor.wait_for_advice(settings(**values), target(memory_bytes))
    assert result is not None
    return result


def test_the_largest_batch_is_found_by_predicting_again(children: type[_Factory]) -> None:
    child = children.of()
    for memory_bytes in (1_200, 2_000, 50_000):
        fitting = (memory_bytes - 1000) // 4
        result = advice(child, memory_bytes).largest_batch
        assert result is not None
        assert 0.99 * fitting - 1 <= result <= fitting


def test_a_limit_below_the_weights_leaves_no_batch(children: type[_Factory]) -> None:
    result = advice(children.of(), 900)
    assert (result.fits, result.largest_batch) == (False, 0)


def test_without_a_limit_there_is_no_largest_batch_but_remedies(children: type[_Factory]) -> None:
    result = advice(children.of(), None)
    assert (result.fits, result.largest_batch) == (None, None)
    assert result.remedies
    assert all(remedy.fits is None for remedy in result.remedies)


def test_each_remedy_is_one_change_with_its_own_prediction(children: type[_Factory]) -> None:
    result = advice(children.of(), 1_250)
    assert result.fits is False
    by_label = {remedy.label: remedy for remedy in result.remedies}
    assert by_label["activation checkpointing"].peak_bytes == 1_100
    assert by_label["activation checkpointing"].saved_bytes == 300
    assert by_label["mixed precision (bf16)"].fits is True
    assert by_label["batch 50, accumulated 2 times"].changes == {"batch_size": 50, "grad_accumulation": 2}
    assert by_label["batch 62"].fits is True
    assert not any("optimizer" in remedy.changes for remedy in result.remedies)


def test_a_newer_question_comes_before_the_advice(children: type[_Factory]) -> None:
    child = children.of()
    child.predictor.wait(settings(), target(50_000))
    child.predictor.advise(settings(), target(50_000))
    child.predictor.wait(settings(batch_size=3), target(50_000))
    assert child.questions.index("3 off False") <= 3
    assert child.predictor.wait_for_advice(settings(), target(50_000)) is not None


def test_without_torch_the_child_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "without torch" in reason(answering(None)("{}"))


def test_a_question_that_cannot_be_read_is_refused() -> None:
    answer = answering(None)
    for line in ("", "{}", "[1, 2]", '[{"model": "nope", "batch": 1}, "cpu", null]'):
        assert "cannot be read" in reason(answer(line))


def test_asking_never_imports_torch() -> None:
    code = "import sys, harness.predict.asking, harness.cli.predicting; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


_PARENT = """
import os, sys
from pathlib import Path
import psutil
from tests.unit.test_asking import ChildProcess, settings, target
predictor = ChildProcess(Path(sys.argv[1]), "answers")
predictor.predictor.wait(settings(), target())
(child,) = psutil.Process().children()
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_the_child_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -9, done.stderr
    number = int(done.stdout)

    def is_over() -> bool:
        try:
            return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    until(is_over, bool)


@pytest.mark.slow
@pytest.mark.long
def test_the_real_child_answers_and_ends_with_its_input() -> None:
    line = Question.of(resolve({"model": "mlp"}), target()).to_json()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness.predict"],
        input=line + "\n" + line + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    answers = [from_json(Prediction, answer) for answer in done.stdout.splitlines()]
    assert len(answers) == 2
    peaks = [answer.peak_allocated_bytes for answer in answers]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)  # Kernels are measured anew each time.
