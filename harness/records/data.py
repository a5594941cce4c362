"""The kind and the shape of the samples that a data source yields."""

from enum import StrEnum
from typing import NamedTuple


class DataKind(StrEnum):
    """The kind of samples that a data source yields and a model accepts."""

    IMAGE = "image"
    TEXT = "text"
    # Pairs of tensors of any shape, from a person's own dataset.
    TENSORS = "tensors"


class TensorShape(NamedTuple):
    """The shape of one sample's tensor, and torch's name of its data type, such as "float32"."""

    size: tuple[int, ...]
    dtype: str


class DataShape(NamedTuple):
    """The shape of one sample. Images are (channels, height, width) floats with a class label; text is
    `sequence_length` token ids below `vocabulary` with the next token at each position as its target."""

    kind: DataKind
    channels: int = 0
    height: int = 0
    width: int = 0
    classes: int = 0
    vocabulary: int = 0
    sequence_length: int = 0
    # Of a person's own dataset.
    inputs: TensorShape | None = None
    targets: TensorShape | None = None
    # The number of samples, where it is known before the source is opened.
    samples: int | None = None

    @property
    def is_image(self) -> bool:
        """True for samples of channels, height and width."""
        return self.kind is DataKind.IMAGE or (self.inputs is not None and len(self.inputs.size) == 3)

    @property
    def is_text(self) -> bool:
        """True for samples of token ids."""
        return self.kind is DataKind.TEXT
