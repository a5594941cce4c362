"""The child process that predicts: a question a line in, an answer a line out. Ends when its input does, or
after some minutes without a question."""

import gc
import os
import selectors
import sys

from harness.errors import SettingError
from harness.prediction import Answer, Impossible, to_json

IDLE_S = 600.0


def main() -> int:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # What libraries print is no answer.
    lines = os.fdopen(0, "rb", buffering=0)
    asked = b""
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        while selector.select(IDLE_S):
            piece = os.read(0, 1 << 16)
            if not piece:
                break
            asked += piece
            while b"\n" in asked:
                line, _, asked = asked.partition(b"\n")
                answers.write(to_json(_answer(line.decode())) + "\n")
    return 0


def _answer(line: str) -> Answer:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return Impossible(f"Memory cannot be predicted without torch, which cannot be imported: {error}.")

    from harness.predict.context import context_bytes, run_threads
    from harness.predict.kernels import Kernels
    from harness.predict.predicting import predict
    from harness.predict.question import Question

    threads = run_threads()
    try:
        question = Question.from_json(line)
    except (ValueError, SettingError) as error:
        return Impossible(f"The question cannot be read: {error}")
    return predict(question, context_bytes(), lambda: Kernels(threads))


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        gc.freeze()  # All ends here: looking for garbage among torch's objects once more takes 0.8 s.
