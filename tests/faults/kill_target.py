"""The writer that is killed: for each line on stdin, a folder and a seed, forks a child that writes a log.

Says "pid N" of each child on stdout; the child says "ack N" when every step up to N can be read, and "closed"
when it has closed the log.
"""

import itertools
import os
import random
import sys
import time
from pathlib import Path

from harness.records.run import RunState, StepRow
from harness.store.writer import LogWriter
from tests.store_factories import a_run, a_step, an_event


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def write_until_killed(path: Path, seed: int) -> None:
    """Write steps in batches of random size and acknowledge each; every fourth child closes its log early."""
    chance = random.Random(seed)
    numbers = itertools.count(1)
    fed: list[StepRow] = []

    def feed() -> list[StepRow]:
        result = list(fed)
        del fed[: len(result)]
        return result

    batches = 3 if seed % 4 == 0 else 1_000_000
    with LogWriter(path, a_run(), feed, time.monotonic_ns, poll_s=0.001) as writer:
        connection = writer._keeper.appender._connection
        assert connection is not None
        connection.execute(f"PRAGMA wal_autocheckpoint = {chance.choice((5, 50, 1_000))}")
        for _ in range(batches):
            fed.extend([a_step(next(numbers)) for _ in range(chance.randint(1, 400))])
            last = fed[-1].step
            writer.put(an_event(str(last), last))
            if chance.random() < 0.1:
                done = writer.set_state(RunState.RUNNING, "Training.", timeout_s=5)
            else:
                done = writer.flush(5)
            if done:
                _say(f"ack {last}")
    _say("closed")
    time.sleep(60)


def main() -> None:
    """Fork a child a line and say when it is gone."""
    for line in sys.stdin:
        folder, seed = line.rsplit(" ", 1)
        child = os.fork()
        if child == 0:
            write_until_killed(Path(folder) / "log.sqlite3", int(seed))
            os._exit(0)
        _say(f"pid {child}")
        os.waitpid(child, 0)
        _say("gone")


if __name__ == "__main__":
    main()
