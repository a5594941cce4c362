"""The truth about a training loop, recorded by the loop itself: its steps, their samples and losses, and the
time of evaluations. Copied beside each script of `tests.bench.loops`; knows nothing of Stepscope."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

# Time that passes on the clock of the benchmark, which otherwise stands still.
_BATCH_NS, _EVALUATION_NS = 3_000_000, 40_000_000


def _spend(duration_ns: int) -> None:
    if (advance := getattr(time.perf_counter_ns, "advance", None)) is not None:
        advance(duration_ns)


class Record:
    """Takes notes between the lines of a loop, and writes them down at its end.

    A step lasts from the update before to its own. Its trained time lasts from its first batch on, without
    evaluations.
    """

    def __init__(self, path: str, *, has_loader: bool = True) -> None:
        """`path` is the file to write; `has_loader` is whether the begin of a step shows in its batch."""
        self._path, self._has_loader = Path(path), has_loader
        self.steps: list[dict[str, Any]] = []
        self._samples: int | None = 0
        self._losses: list[float | None] = []
        self._last_ns = time.perf_counter_ns()
        self._began_ns: int | None = None
        self._evaluated_ns = self._evaluated_within_ns = 0

    def began(self) -> None:
        """A batch is about to be trained on."""
        if self._began_ns is None:
            self._began_ns = time.perf_counter_ns() + (0 if self._has_loader else _BATCH_NS)
        _spend(_BATCH_NS)

    def trained(self, samples: int | None, loss: Any) -> None:
        """Gradients of `loss` over so many samples were computed. None: what a log has to say is open."""
        self._samples = None if samples is None or self._samples is None else self._samples + samples
        self._losses.append(None if loss is None else float(loss))

    def dropped(self) -> None:
        """The gradients since the last update were cleared, without another one."""
        self._samples, self._losses = 0, []

    def skipped(self) -> None:
        """The batch is not trained on."""
        if not self._losses:
            self._began_ns, self._evaluated_within_ns = None, 0

    def updated(self, *, is_clear: bool = True) -> None:
        """The optimizers have made an update, of the last loss. Without `is_clear` any of the losses may be
        the step's, and its end is somewhere before."""
        now_ns = time.perf_counter_ns()
        self.steps.append(
            {
                "samples": self._samples,
                "losses": self._losses[-1:] if is_clear else self._losses,
                "gap_ns": now_ns - self._last_ns,
                "evaluated_ns": self._evaluated_ns,
                "trained_ns": now_ns - (self._began_ns or now_ns) - self._evaluated_within_ns,
                "is_clear": is_clear,
            }
        )
        self._samples, self._losses, self._last_ns = 0, [], now_ns
        self._began_ns, self._evaluated_ns, self._evaluated_within_ns = None, 0, 0

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Until the context ends, nothing is trained."""
        began_ns = time.perf_counter_ns()
        _spend(_EVALUATION_NS)
        yield
        duration_ns = time.perf_counter_ns() - began_ns
        self._evaluated_ns += duration_ns
        if self._began_ns is not None:
            self._evaluated_within_ns += duration_ns

    def end(self, *models: nn.Module) -> None:
        """Write down the steps, and a hash of the weights of `models`."""
        sums = hashlib.sha256()
        for model in models:
            for tensor in model.state_dict().values():
                sums.update(tensor.detach().numpy().tobytes())
        self._path.write_text(json.dumps({"steps": self.steps, "weights": sums.hexdigest()}))
