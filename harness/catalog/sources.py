"""All data sources, by key."""

from collections.abc import Mapping

from harness.catalog.own import own_data
from harness.catalog.spec import DataSpec, nearest
from harness.errors import SettingError
from harness.records.data import DataKind

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
        title="Colored shapes",
        summary="Labeled discs, squares, triangles, rings, crosses and diamonds, drawn on the fly at "
        "any size.",
        kind=DataKind.IMAGE,
        opener="harness.data.shapes:open_source",
        shape="harness.data.shapes:shape_of",
    ),
    DataSpec(
        key="images",
        title="Your images",
        summary="Your own folder with one subfolder per class; set data_path.",
        kind=DataKind.IMAGE,
        opener="harness.data.images:open_source",
        shape="harness.data.images:shape_of",
        needs_path=True,
    ),
    DataSpec(
        key="stdlib-text",
        title="Python's standard library",
        summary="The source files of Python's standard library, as bytes, the first 8 MiB.",
        kind=DataKind.TEXT,
        opener="harness.data.text:open_standard_library",
        shape="harness.data.text:shape_of_standard_library",
    ),
    DataSpec(
        key="text",
        title="Your text",
        summary="Your own file or folder, as bytes, up to 256 MiB; set data_path.",
        kind=DataKind.TEXT,
        opener="harness.data.text:open_own",
        shape="harness.data.text:shape_of",
        needs_path=True,
    ),
    DataSpec(
        key="synthetic",
        title="Synthetic",
        summary="Random tensors, generated once on the device: no loader and no copies.",
        kind=None,
        opener="harness.data.synthetic:open_source",
        shape="harness.data.synthetic:shape_of",
    ),
)

DATA: Mapping[str, DataSpec] = {spec.key: spec for spec in _SOURCES}


def data(key: str) -> DataSpec:
    """Return the data source `key`, or a person's own; raises SettingError with the nearest name."""
    if key in DATA:
        return DATA[key]
    if (own := own_data(key)) is not None:
        return own
    raise SettingError("data", f"There is no data source {key!r}; {nearest(key, DATA)}")
