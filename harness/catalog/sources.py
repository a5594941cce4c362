"""Every source of samples, by key."""

from collections.abc import Mapping

from harness.catalog.spec import DataSpec, nearest
from harness.errors import SettingError
from harness.records import DataKind

_SOURCES = (
    DataSpec(
        key="digits",
        title="Handwritten digits",
        summary="1,797 real handwritten digits, enlarged to the image size.",
        kind=DataKind.IMAGE,
        opener="harness.data.digits:open_source",
        shape="harness.data.digits:shape_of",
    ),
    DataSpec(
        key="shapes",
        title="Coloured shapes",
        summary="Labelled discs, squares, triangles, rings, crosses and diamonds, drawn on the fly at "
        "any size.",
        kind=DataKind.IMAGE,
        opener="harness.data.shapes:open_source",
        shape="harness.data.shapes:shape_of",
    ),
    DataSpec(
        key="images",
        title="Your pictures",
        summary="A folder of your own whose subfolders are the classes; set data_path.",
        kind=DataKind.IMAGE,
        opener="harness.data.images:open_source",
        shape="harness.data.images:shape_of",
        needs_path=True,
    ),
    DataSpec(
        key="stdlib-text",
        title="Python's standard library",
        summary="The bytes of the Python source files that this Python came with, the first 8 MiB.",
        kind=DataKind.TEXT,
        opener="harness.data.text:open_standard_library",
        shape="harness.data.text:shape_of",
    ),
    DataSpec(
        key="text",
        title="Your text",
        summary="The bytes of a file or a folder of your own, up to 256 MiB; set data_path.",
        kind=DataKind.TEXT,
        opener="harness.data.text:open_own",
        shape="harness.data.text:shape_of",
        needs_path=True,
    ),
    DataSpec(
        key="synthetic",
        title="Synthetic",
        summary="Random tensors made once on the device: takes the loader and the copies out of the picture.",
        kind=None,
        opener="harness.data.synthetic:open_source",
        shape="harness.data.synthetic:shape_of",
    ),
)

DATA: Mapping[str, DataSpec] = {spec.key: spec for spec in _SOURCES}


def data(key: str) -> DataSpec:
    """The data source called `key`; raises SettingError with the nearest name."""
    if key in DATA:
        return DATA[key]
    raise SettingError("data", f"There is no data source {key!r}; {nearest(key, DATA)}")
