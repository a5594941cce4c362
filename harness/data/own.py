"""A person's own dataset: any map-style dataset of pairs (inputs, targets)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from harness.catalog.own import OwnObject, parse_own
from harness.catalog.own_code import load_own
from harness.data.source import Batch, Indices
from harness.errors import SettingError, StepscopeError
from harness.records.data import DataKind, DataShape, TensorShape
from harness.settings import Settings


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
        samples = []
        for index in indices:
            try:
                samples.append(self._dataset[int(index)])
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                raise StepscopeError(f"Sample {index} of {self._own.title} failed: {failure}") from error
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
    if not hasattr(dataset, "__getitem__") and callable(dataset):
        dataset = dataset(settings)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise SettingError(
            "data",
            f"{own.title} is {type(dataset).__name__}, which has no samples by number; it has to be a "
            "map-style dataset, or a function of the settings that returns one.",
        )
    if len(dataset) == 0:
        raise SettingError("data", f"{own.title} has no samples.")
    return dataset


def _shape(own: OwnObject, dataset: Any) -> DataShape:
    inputs, targets = _collate(own, [dataset[0]])
    return DataShape(DataKind.TENSORS, inputs=_tensor_shape(inputs), targets=_tensor_shape(targets))


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
