"""One stage of `make gpu-check`, in a process of its own: `python -m tests.gpu.stage KEY …`.

A crash ends this process alone; the results so far are on disk (see `tests.gpu.journal`).
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tests.gpu.context import Context
from tests.gpu.journal import ResultsFile
from tests.gpu.stages import STAGES

TIME_IS_OVER = 75
"""The exit code of a stage that has items left when its time is over (EX_TEMPFAIL of sysexits.h)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the stage; 0 when it finished, `TIME_IS_OVER` when a later call has to continue."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.stage")
    parser.add_argument("key", choices=[stage.key for stage in STAGES])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    context = Context(
        options.key,
        ResultsFile(options.results),
        options.device,
        options.seed,
        options.seconds,
        options.quick,
    )
    (stage,) = (stage for stage in STAGES if stage.key == options.key)
    measure: Callable[[Context], None] = import_module(f"tests.gpu.measures.{stage.module}").measure
    measure(context)
    return 0 if context.has_time else TIME_IS_OVER


if __name__ == "__main__":
    sys.exit(main())
