"""Turns a data source into an endless stream of batches, in the training thread or in worker processes."""

import atexit
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.utils.data import DataLoader, Dataset

from harness.data.order import ShuffledBatches
from harness.data.source import Batch, DataSource, Indices
from harness.data.synthetic import SyntheticSource
from harness.data.workers import prepare_worker, worker_context
from harness.errors import SettingError, StepscopeError
from harness.settings import Settings

_KILL_WAIT_S = 5.0
_DEATH_NEWS_WAIT_S = 0.5


class Loader(AbstractContextManager["Loader"], Protocol):
    """Batches without end. Used from one thread."""

    def next(self) -> Batch:
        """The next batch. Raises StepscopeError when a file cannot be read or a worker has died."""
        ...

    def worker_pids(self) -> list[int]:
        """The process ids of the workers, empty without workers."""
        ...

    def close(self) -> None:
        """Stop the workers; waits a bounded time. Idempotent."""
        ...


def open_loader(
    source: DataSource, settings: Settings, device: torch.device, *, generation: int = 0
) -> Loader:
    """A loader as the settings say (batch_size, num_workers, prefetch_factor, pin_memory, slow_loader_ms).

    Batches stay on the CPU, but for the synthetic source, whose one batch is made on `device`. `generation`
    counts the rebuilds of a run's loader, so that a rebuilt one does not repeat the order of the first.
    Raises SettingError when the source has no samples.
    """
    if len(source) == 0:
        raise SettingError("data", f"The data source {settings.data!r} has no samples; choose another.")
    if isinstance(source, SyntheticSource):
        return ResidentLoader(source.batch_on(device, settings.batch_size), settings.slow_loader_ms / 1000)
    order = ShuffledBatches(len(source), settings.batch_size, settings.seed, generation)
    return BatchLoader(source, order, settings, pin=settings.pin_memory and device.type in ("cuda", "xpu"))


class ResidentLoader:
    """Gives the same batch, already on the device, again and again."""

    def __init__(self, batch: Batch, delay_s: float) -> None:
        self._batch = batch
        self._delay_s = delay_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def next(self) -> Batch:
        """The batch."""
        if self._delay_s:
            time.sleep(self._delay_s)
        return self._batch

    def worker_pids(self) -> list[int]:
        """None, ever."""
        return []

    def close(self) -> None:
        """Nothing to stop."""


class _Fetches(Dataset[Batch | StepscopeError]):
    """The source as torch's DataLoader wants it: one item is one batch.

    An error of ours travels back as a value, because the loader wraps what a worker raises in a traceback.
    A delay ends early when the other end of the pipe `closing` is closed.
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


def _as_it_is(item: Any) -> Any:
    return item


class BatchLoader:
    """torch's DataLoader over whole batches: one vectorised fetch each, one endless iterator."""

    def __init__(self, source: DataSource, order: ShuffledBatches, settings: Settings, *, pin: bool) -> None:
        workers = settings.num_workers
        context = worker_context() if workers else None
        # A pipe, not an Event: one whose waiter was killed cannot be set any more.
        self._pipe = context.Pipe(duplex=False) if context is not None else ()
        loader = DataLoader(
            _Fetches(source, settings.slow_loader_ms / 1000, self._pipe[0] if self._pipe else None),
            batch_size=None,
            sampler=order,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin,
            worker_init_fn=prepare_worker if workers else None,
            multiprocessing_context=context,
            prefetch_factor=settings.prefetch_factor if workers else None,
            generator=torch.Generator().manual_seed(settings.seed),
        )
        self._batches: Iterator[Batch | StepscopeError] | None = iter(loader)
        # torch has no public name for them; a test holds this one.
        self._workers: list[BaseProcess] = list(getattr(self._batches, "_workers", ()))
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def next(self) -> Batch:
        """The next batch, waiting for a worker where there are any."""
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
        """The process ids of the workers that live."""
        return [w.pid for w in self._workers if w.pid is not None and w.is_alive()]

    def close(self) -> None:
        """Stop the workers, politely, then not. Waits about 5 s a worker at the most."""
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
        """`error` itself, or a sentence when its cause is a dead worker: its tensors die with it, so the
        connection to it may break before the loader sees that it is gone."""
        if not self._workers:
            return error
        connection.wait([w.sentinel for w in self._workers], _DEATH_NEWS_WAIT_S)
        dead = [w for w in self._workers if not w.is_alive()]
        if not dead:
            return error
        code = dead[0].exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return StepscopeError(
            f"Loader worker {dead[0].pid} {how}; when the machine ran short of memory or of shared memory "
            "(/dev/shm), fewer workers, a smaller batch or a smaller prefetch_factor help."
        )
