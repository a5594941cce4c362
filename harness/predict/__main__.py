"""The prediction process: reads one question per line and writes one result per line. Exits when its input
ends, or after some minutes without a question.

`python -m harness.predict [FOLDER]`: FOLDER stores the measured footprints of kernels.
"""

import gc
import os
import selectors
import sys
from collections.abc import Callable
from pathlib import Path

from harness.ending import skip_last_collection
from harness.errors import SettingError
from harness.predict.answer import Answer, Impossible, to_json

IDLE_S = 600.0


def main() -> int:
    """Answer questions until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # Output of libraries must not reach the results.
    lines = os.fdopen(0, "rb", buffering=0)
    gc.disable()  # Nothing is garbage among hundreds of thousands of new objects: saves a second.
    answer = answering(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    gc.freeze()
    gc.enable()
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        while selector.select(IDLE_S):
            piece = os.read(0, 1 << 16)
            if not piece:
                break
            buffer += piece
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                answers.write(to_json(answer(line.decode())) + "\n")
    return 0


def answering(folder: Path | None) -> Callable[[str], Answer]:
    """Import torch and everything predictions need; return the function that answers a line. `folder` stores
    the measured footprints of kernels."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        reason = f"Memory cannot be predicted without torch, which cannot be imported: {error}."
        return lambda _line: Impossible(reason)

    from harness.predict.context import context_bytes, run_threads
    from harness.predict.metering import KernelMeter
    from harness.predict.predicting import predict
    from harness.predict.question import Question

    meter = KernelMeter(run_threads(), folder)
    baseline_bytes = context_bytes()

    def answer(line: str) -> Answer:
        try:
            question = Question.from_json(line)
        except (ValueError, SettingError) as error:
            return Impossible(f"The question cannot be read: {error}")
        return predict(question, baseline_bytes, meter)

    return answer


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        skip_last_collection()
