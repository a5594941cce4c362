"""Loaders: endless batches of a data source, from the training thread or from worker processes."""

import atexit
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from harness.closing import Closing
from harness.data.order import ShuffledBatches
from harness.data.source import Batch, DataSource, Indices
from harness.data.synthetic import SyntheticSource
from harness.data.workers import prepare_worker, worker_context
from harness.errors import SettingError, StepscopeError
from harness.records.ranks import ALONE, RankPlace
from harness.settings import Settings

_KILL_WAIT_S = 5.0
_WORKER_EXIT_WAIT_S = 0.5


class Loader(AbstractContextManager["Loader"], Protocol):
    """An endless stream of batches, for one thread."""

    def next(self) -> Batch:
        """Return the next batch. Raises StepscopeError when a file is unreadable or a worker has exited."""
        ...

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers."""
        ...

    def close(self) -> None:
        """Stop the workers within a bounded time. Idempotent."""
        ...


def open_loader(
    source: DataSource,
    settings: Settings,
    device: torch.device,
    *,
    generation: int = 0,
    place: RankPlace = ALONE,
) -> Loader:
    """Open a loader for batch_size, num_workers, prefetch_factor, pin_memory and slow_loader_ms.

    Batches are on the CPU, except for the synthetic source, whose single batch is on `device`. `generation`
    counts the rebuilds of a run's loader, so that a rebuilt loader does not repeat the order of the first.
    Each rank gets its share of the samples (all get the same synthetic batch).
    Raises SettingError when the source has no samples.
    """
    if len(source) == 0:
        raise SettingError("data", f"The data source {settings.data!r} has no samples; choose another.")
    if isinstance(source, SyntheticSource):
        return ResidentLoader(source.batch_on(device, settings.batch_size), settings.slow_loader_ms / 1000)
    order = ShuffledBatches(len(source), settings.batch_size, settings.seed, generation, place)
    return BatchLoader(source, order, settings, pin=settings.pin_memory and device.type in ("cuda", "xpu"))


class ResidentLoader(Closing):
    """Returns the same batch, on the device, every time."""

    def __init__(self, batch: Batch, delay_s: float) -> None:
        self._batch = batch
        self._delay_s = delay_s

    def next(self) -> Batch:
        """Return the batch."""
        if self._delay_s:
            time.sleep(self._delay_s)
        return self._batch

    def worker_pids(self) -> list[int]:
        """Return no ids: there are no workers."""
        return []

    def close(self) -> None:
        """Do nothing."""


class _Fetches(Dataset[Batch | StepscopeError]):
    """The source as a map-style dataset of whole batches.

    A StepscopeError is returned as a value, because the DataLoader wraps an exception of a worker in a
    traceback. A delay ends early when the other end of the pipe `closing` is closed.
    """

    def __init__(self, source: DataSource, delay_s: float, closing: Connection | None) -> None:
        self._source = source
        self._delay_s = delay_s
        self._closing = closing

    def __getitem__(self, indices: Indices) -> Batch | StepscopeError:
        if self._delay_s:
            if self._closing is None:
                time.sleep(self._delay_s)
            else:
                self._closing.poll(self._delay_s)
        try:
            return self._source.fetch(indices)
        except StepscopeError as error:
            return error


def _identity(item: Any) -> Any:
    return item


class BatchLoader(Closing):
    """torch's DataLoader over whole batches: one vectorized fetch per batch, one endless iterator."""

    def __init__(self, source: DataSource, order: ShuffledBatches, settings: Settings, *, pin: bool) -> None:
        workers = settings.num_workers
        context = worker_context() if workers else None
        # A pipe, not an Event: an Event whose waiter was killed can no longer be set.
        self._pipe = context.Pipe(duplex=False) if context is not None else ()
        loader = DataLoader(
            _Fetches(source, settings.slow_loader_ms / 1000, self._pipe[0] if self._pipe else None),
            batch_size=None,
            sampler=order,
            num_workers=workers,
            collate_fn=_identity,
            pin_memory=pin,
            worker_init_fn=prepare_worker if workers else None,
            multiprocessing_context=context,
            prefetch_factor=settings.prefetch_factor if workers else None,
            generator=torch.Generator().manual_seed(settings.seed),
        )
        self._batches: Iterator[Batch | StepscopeError] | None = iter(loader)
        # torch has no public attribute for the workers; a test covers this one.
        self._workers: list[BaseProcess] = list(getattr(self._batches, "_workers", ()))
        atexit.register(self.close)

    def next(self) -> Batch:
        """Return the next batch, waiting for a worker if there are any."""
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        try:
            batch = next(self._batches)
        except (RuntimeError, OSError, EOFError) as error:
            raise self._explain(error) from error
        if isinstance(batch, StepscopeError):
            raise batch
        return batch

    def worker_pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        return [w.pid for w in self._workers if w.pid is not None and w.is_alive()]

    def close(self) -> None:
        """Close the pipe and the iterator, then kill remaining workers. Waits at most about 5 s per
        worker."""
        if self._batches is None:
            return
        atexit.unregister(self.close)
        for end in self._pipe:
            end.close()
        self._batches = None
        for worker in self._workers:
            if worker.is_alive():
                worker.kill()
                worker.join(_KILL_WAIT_S)

    def _explain(self, error: Exception) -> Exception:
        """Return `error`, or a StepscopeError when its cause is a dead worker: the connection to a worker may
        break before the DataLoader notices its exit."""
        if not self._workers:
            return error
        connection.wait([w.sentinel for w in self._workers], _WORKER_EXIT_WAIT_S)
        dead = [w for w in self._workers if not w.is_alive()]
        if not dead:
            return error
        code = dead[0].exitcode
        ending = (
            f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        )
        return StepscopeError(
            f"Loader worker {dead[0].pid} {ending}; if the machine ran out of memory or shared memory "
            "(/dev/shm), use fewer workers, a smaller batch or a smaller prefetch_factor."
        )
