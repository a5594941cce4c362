"""A person's own dataset: any map-style dataset of pairs (inputs, targets)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from harness.catalog.own import OwnObject, parse_own
from harness.catalog.own_code import call_own, load_own, takes
from harness.data.source import Batch, Indices
from harness.errors import SettingError, StepscopeError
from harness.records.data import DataKind, DataShape, TensorShape
from harness.settings import Settings

# Samples that exist at a time besides the batch. Each is a small block, and as long as one is in use above
# them, freed blocks count against a memory cap.
_TOGETHER = 64


class OwnSource:
    """The dataset that `settings.data` names. A worker process opens it anew."""

    def __init__(self, settings: Settings) -> None:
        """Open the dataset. Raises SettingError when it is not one of pairs of tensors."""
        self._settings = settings
        self._own = _own(settings)
        self._dataset = _open(self._own, settings)
        self.note: str | None = None
        self.shape = _shape(self._own, self._dataset)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._dataset)

    def fetch(self, indices: Indices) -> Batch:
        """Return the samples at `indices`. Raises StepscopeError with the sample that fails."""
        if get_worker_info() is not None:  # Its memory is not the training's.
            return self._fetch_together(indices)
        starts = range(0, len(indices), _TOGETHER)
        parts = [self._fetch_together(indices[at : at + _TOGETHER]) for at in starts]
        if len(parts) == 1:
            return parts[0]
        try:
            return Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        except RuntimeError as error:
            raise SettingError("data", f"Samples of {self._own.title} make no batch: {error}") from error

    def _fetch_together(self, indices: Indices) -> Batch:
        samples = []
        for index in indices:
            try:
                samples.append(self._dataset[int(index)])
            except Exception as error:
                sentence = _sample_failure(self._own, int(index), error)
                raise StepscopeError(sentence) from error
        return _collate(self._own, samples)

    def __getstate__(self) -> Mapping[str, Any]:
        return {"settings": self._settings}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["settings"])  # type: ignore[misc]  # opened anew, in another process


def shape_of(settings: Settings) -> DataShape:
    """Return the shape of the dataset's first sample. Raises SettingError as `open_source`."""
    own = _own(settings)
    return _shape(own, _open(own, settings))


def open_source(settings: Settings) -> OwnSource:
    """Open the dataset that `settings.data` names. Raises SettingError when it cannot be opened, has no
    samples, or its samples are no pairs of tensors."""
    return OwnSource(settings)


def _own(settings: Settings) -> OwnObject:
    own = parse_own(settings.data)
    assert own is not None
    return own


def _open(own: OwnObject, settings: Settings) -> Any:
    dataset = load_own("data", own.file, own.attribute)
    verb = "is"
    if callable(dataset) and (isinstance(dataset, type) or not hasattr(dataset, "__getitem__")):
        if not takes(dataset, 1):
            raise SettingError(
                "data", f"{own.title} does not take the settings; it is called as {own.attribute}(settings)."
            )
        dataset, verb = call_own("data", own.title, dataset, settings), "returned"
    if (lack := _lack(dataset)) is not None:
        raise SettingError(
            "data",
            f"{own.title} {verb} {type(dataset).__name__}, which has no {lack}; it has to be a map-style "
            "dataset, with `__getitem__` and `__len__`, or a function of the settings that returns one.",
        )
    if len(dataset) == 0:
        raise SettingError("data", f"{own.title} has no samples.")
    return dataset


def _lack(dataset: Any) -> str | None:
    """Return the part of a map-style dataset that `dataset` lacks; None: it is one."""
    # An iterable dataset inherits a `__getitem__`, which raises.
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return "samples by number"
    return None if hasattr(dataset, "__len__") else "length"


def _sample_failure(own: OwnObject, index: int, error: Exception) -> str:
    message = " ".join(str(error).split())
    return f"Sample {index} of {own.title} failed: {type(error).__name__}: {message}"


def _shape(own: OwnObject, dataset: Any) -> DataShape:
    try:
        sample = dataset[0]
    except Exception as error:
        sentence = _sample_failure(own, 0, error)
        raise SettingError("data", sentence) from error
    inputs, targets = _collate(own, [sample])
    return DataShape(
        DataKind.TENSORS,
        inputs=_tensor_shape(inputs),
        targets=_tensor_shape(targets),
        samples=len(dataset),
    )


def _tensor_shape(batch: Tensor) -> TensorShape:
    return TensorShape(tuple(batch.shape[1:]), str(batch.dtype).removeprefix("torch."))


def _collate(own: OwnObject, samples: list[Any]) -> Batch:
    """Return the batch of `samples`. Raises SettingError when they are no pairs of tensors."""
    try:
        batch = default_collate(samples)
    except (TypeError, RuntimeError) as error:
        raise SettingError("data", f"Samples of {own.title} make no batch: {error}") from error
    if (
        not isinstance(batch, list | tuple)
        or len(batch) != 2
        or not all(torch.is_tensor(one) for one in batch)
    ):
        kinds = ", ".join(type(one).__name__ for one in samples[0]) if isinstance(samples[0], tuple) else ""
        what = f"({kinds})" if kinds else type(samples[0]).__name__
        raise SettingError(
            "data",
            f"Samples of {own.title} are {what}; they have to be (inputs, targets), each a tensor, an array "
            "or a number.",
        )
    return Batch(*batch)
