"""Torch's iterator of a loader: with what it is opened, and what it keeps to itself.

Its attributes that begin with `_` are not public; the tests of the exchange run with each supported torch.
"""

import threading
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from harness.attach.indices import IndexStream
from harness.attach.loader_values import LoaderValues, values_of


def opening_attributes(
    loader: DataLoader[Any], values: LoaderValues, stream: IndexStream | None
) -> dict[str, Any]:
    """Return the attributes that a loader needs while an iterator with `values` is opened, which draws its
    indices from `stream`."""
    own = values_of(loader)
    attributes: dict[str, Any] = {}
    if stream is not None:
        attributes["sampler" if loader.batch_sampler is None else "batch_sampler"] = stream
    elif values.batch_size is not None and values.batch_size != own.batch_size:
        sampler: Any = loader.sampler
        attributes["batch_sampler"] = BatchSampler(sampler, values.batch_size, loader.drop_last)
    if values != own:
        attributes["pin_memory"] = values.pin_memory
        attributes["num_workers"] = values.num_workers
        attributes["prefetch_factor"] = values.prefetch_factor if values.num_workers else None
        attributes["timeout"] = loader.timeout if values.num_workers else 0
    return attributes


def new_size(loader: DataLoader[Any], values: LoaderValues) -> int | None:
    """Return the batch size in `values` if it is not the loader's own."""
    return None if values.batch_size == values_of(loader).batch_size else values.batch_size


def seeded_generator(seed: int) -> torch.Generator:
    """Return random numbers of their own, on the device on which torch draws the seeds of workers."""
    generator = torch.Generator(torch.get_default_device())
    generator.manual_seed(seed % 2**63)
    return generator


def index_stream(batches: Any) -> IndexStream | None:
    """Return the stream that an iterator draws its indices from; None: it draws them itself."""
    stream = getattr(batches, "_index_sampler", None)
    return stream if isinstance(stream, IndexStream) else None


def loaded_ahead(batches: Any, values: LoaderValues) -> int:
    """Return the number of batches that the workers of an iterator with `values` have or load."""
    return batches._send_idx - batches._rcvd_idx if values.num_workers else 0


def keeps_order(batches: Any) -> bool:
    """Return whether batches come in the order in which their indices were drawn."""
    return getattr(batches, "_in_order", True)


def retire(batches: Any) -> None:
    """End the workers of an iterator, without waiting for them."""
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None:
        threading.Thread(target=shut_down, name="stepscope-retire-workers", daemon=True).start()
