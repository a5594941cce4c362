"""Every source of samples, by key."""

from collections.abc import Mapping

from harness.catalog.spec import DataSpec, nearest
from harness.errors import SettingError
from harness.records import DataKind

_SOURCES = (
    DataSpec(
        key="digits",
        title="Handwritten digits",
        summary="1,797 real handwritten digits that come with scikit-learn, enlarged to the image size.",
        kind=DataKind.IMAGE,
        opener="harness.data.digits:open_source",
    ),
    DataSpec(
        key="synthetic",
        title="Synthetic",
        summary="Random tensors made once on the device: takes the loader and the copies out of the picture.",
        kind=None,
        opener="harness.data.synthetic:open_source",
    ),
)

DATA: Mapping[str, DataSpec] = {spec.key: spec for spec in _SOURCES}


def data(key: str) -> DataSpec:
    """The data source called `key`; raises SettingError with the nearest name."""
    if key in DATA:
        return DATA[key]
    raise SettingError("data", f"There is no data source {key!r}; {nearest(key, DATA)}")
