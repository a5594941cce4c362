"""Asynchronous requests for predictions, with a cache of the results. Does not import torch."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.closing import Closing
from harness.errors import SettingError
from harness.predict.advising import AdviceSteps, advise
from harness.predict.answer import Advice, Answer, Impossible, Prediction, Target, from_json, limit_of
from harness.predict.cache import prediction_cache
from harness.predict.process import COMMAND, AnsweringProcess, ProcessError
from harness.predict.question import Question
from harness.settings import Settings
from harness.settings.resolve import check_fit

# Time limit of one prediction.
TIMEOUT_S = 120.0
# Minimum time before the same question is retried after a transient failure.
RETRY_S = 20.0
_SEVERAL_GPUS = "The memory of GPUs that share each batch (data_parallel) is not predicted."
_MOST_ANSWERS = 512
# Older questions that were not requested again are dropped: the user has changed the settings since.
_MOST_WAITING = 4


class _AdviceKey(NamedTuple):
    question: Question
    limit_bytes: int | None
    limit_words: str


class _Advising(NamedTuple):
    key: _AdviceKey
    steps: AdviceSteps
    question: Question


class Predictor(Closing):
    """Returns results from memory, else from the home's files, else from one warm child process. `request`
    and `advise` never wait: None means that the result is being computed; call again. Thread-safe.

    The newest question comes first; advice, which takes several predictions, comes after all others.
    """

    def __init__(
        self,
        home: Path | None,
        process: AnsweringProcess | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`home` is Stepscope's home, where results are stored in `predictions` and measured kernels in
        `footprints`; None: neither is stored."""
        self._cache = prediction_cache(home)
        folder = () if home is None else (str(home / "footprints"),)
        self._process = AnsweringProcess((*COMMAND, *folder)) if process is None else process
        self._clock_s = clock_s
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._answers: OrderedDict[Question, tuple[Answer, float | None]] = OrderedDict()
        self._advice: OrderedDict[_AdviceKey, Advice] = OrderedDict()
        self._waiting: list[Question] = []
        self._advising: _Advising | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def request(self, settings: Settings, target: Target) -> Answer | None:
        """Return the prediction for a run with `settings` on `target`; None while it is being computed."""
        question = _question(settings, target)
        if isinstance(question, Impossible):
            return question
        with self._changed:
            return self._answer(question)

    def advise(self, settings: Settings, target: Target) -> Advice | None:
        """Return the advice; None while it is being computed, and without a prediction. Request the
        prediction first: it is available earlier."""
        question = _question(settings, target)
        if isinstance(question, Impossible):
            return None
        with self._changed:
            key = _AdviceKey(question, *limit_of(settings, target))
            if key in self._advice:
                return self._advice[key]
            answer = self._answer(question)
            if isinstance(answer, Prediction) and (self._advising is None or self._advising.key != key):
                steps = advise(settings, target, answer)
                self._advance(key, steps, None)
                self._wake()
            return self._advice.get(key)

    def wait(self, settings: Settings, target: Target, timeout_s: float = TIMEOUT_S) -> Answer:
        """Wait for the result of `request`; Impossible on timeout."""
        answer: list[Answer] = []

        def is_ready() -> bool:
            answer[:] = filter(None, [self.request(settings, target)])
            return bool(answer)

        if self._until(is_ready, timeout_s):
            return answer[0]
        return Impossible(f"No prediction came within {timeout_s:.0f} s.", is_passing=True)

    def wait_for_advice(
        self, settings: Settings, target: Target, timeout_s: float = TIMEOUT_S
    ) -> Advice | None:
        """Wait for the result of `advise`; None on timeout, or without a prediction."""
        if isinstance(self.wait(settings, target, timeout_s), Impossible):
            return None
        self._until(lambda: self.advise(settings, target) is not None, timeout_s)
        return self.advise(settings, target)

    def close(self) -> None:
        """End the child process. Idempotent; waits a bounded time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._process.kill()
        if self._thread is not None:
            self._thread.join(10.0)
        self._process.close()

    def _until(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `is_ready` returns true; return false on timeout."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not is_ready():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def _answer(self, question: Question) -> Answer | None:
        """Return the available result; otherwise enqueue the question and return None."""
        entry = self._answers.get(question)
        if entry is not None and (entry[1] is None or self._clock_s() < entry[1]):
            self._answers.move_to_end(question)
            return entry[0]
        if self._closed:
            return Impossible("Predictions end with the program that requested them.", True)
        cached = self._cache.get(question.key)
        if cached is not None:
            self._store(question, cached)
            return cached
        if question in self._waiting:
            self._waiting.remove(question)
        self._waiting.append(question)
        del self._waiting[:-_MOST_WAITING]
        self._wake()
        return None

    def _store(self, question: Question, answer: Answer) -> None:
        is_transient = isinstance(answer, Impossible) and answer.is_passing
        self._answers[question] = (answer, self._clock_s() + RETRY_S if is_transient else None)
        while len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)

    def _advance(self, key: _AdviceKey, steps: AdviceSteps, answer: Answer | None) -> None:
        """Send the advice its next result (None: start it) and store the question it needs answered next."""
        try:
            question = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            self._advising = None
            self._advice[key] = end.value
            while len(self._advice) > _MOST_ANSWERS:
                self._advice.popitem(last=False)
        else:
            self._advising = _Advising(key, steps, question)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stepscope-predictor", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._advising or self._closed):
                    self._changed.wait()
                if self._closed:
                    return
                advising = None if self._waiting else self._advising
                question = self._waiting[-1] if advising is None else advising.question
                entry = self._answers.get(question)
            answer = entry[0] if entry is not None and entry[1] is None else self._compute(question)
            with self._changed:
                self._store(question, answer)
                if question in self._waiting:
                    self._waiting.remove(question)
                if advising is not None and self._advising is advising:
                    self._advance(advising.key, advising.steps, answer)
                self._changed.notify_all()

    def _compute(self, question: Question) -> Answer:
        cached = self._cache.get(question.key)
        if cached is not None:
            return cached
        try:
            answer = _read_answer(self._process.query(question.to_json(), self._timeout_s))
        except ProcessError as error:
            return Impossible(str(error), is_passing=True)
        if isinstance(answer, Prediction):
            self._cache.put(question.key, answer)
        return answer


def _question(settings: Settings, target: Target) -> Question | Impossible:
    try:
        check_fit(settings)
        if settings.data_parallel > 1:
            return Impossible(_SEVERAL_GPUS)
        return Question.of(settings, target)
    except SettingError as error:
        return Impossible(str(error))


def _read_answer(line: str) -> Answer:
    try:
        return from_json(Impossible, line) if line.startswith('{"reason"') else from_json(Prediction, line)
    except ValueError:
        return Impossible("The prediction process returned an unreadable result; try again.", True)
