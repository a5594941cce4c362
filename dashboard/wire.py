"""Serialization of a figure for the browser: a JSON head, then raw little-endian arrays; see static/wire.mjs.

As bytes, a tick's figure takes one copy; as JSON, Streamlit would serialize it three times. Arrays are sent
as float32 (seven digits), or as float64 if they are of that type (steps beyond 16 million).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CODES = {np.dtype("<f4"): "f4", np.dtype("<f8"): "f8"}
_ALIGNMENT = 8


def pack(head: Mapping[str, Any]) -> bytes:
    """Serialize `head`, with every numpy array moved behind the JSON; an array used twice is sent once.

    Layout: u32 length of the JSON, the JSON, zeros up to a multiple of 8, the arrays. In the JSON an array
    reads {"$a": [type, offset in bytes, length]}.
    """
    chunks: list[bytes] = []
    references: dict[int, list[Any]] = {}
    offset = 0

    def place(array: NDArray[Any]) -> list[Any]:
        nonlocal offset
        if id(array) not in references:
            plain = array.astype("<f8" if array.dtype == np.float64 else "<f4", copy=False)
            raw = plain.tobytes()
            references[id(array)] = [_CODES[plain.dtype], offset, len(plain)]
            padded = raw + bytes(-len(raw) % _ALIGNMENT)
            chunks.append(padded)
            offset += len(padded)
        return references[id(array)]

    def walk(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"$a": place(value)}
        if isinstance(value, Mapping):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [walk(item) for item in value]
        return value

    text = json.dumps(walk(head), separators=(",", ":"), allow_nan=False).encode()
    padding = bytes(-(4 + len(text)) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(4, "little"), text, padding, *chunks])


def unpack(payload: bytes) -> Any:
    """Return the head that `pack` serialized, including arrays; for tests and debugging."""
    length = int.from_bytes(payload[:4], "little")
    start = 4 + length + (-(4 + length) % _ALIGNMENT)

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$a" in value:
            code, offset, count = value["$a"]
            return np.frombuffer(payload, dtype=f"<{code}", count=count, offset=start + offset)
        return {key: walk(item) for key, item in value.items()}

    return walk(json.loads(payload[4 : 4 + length]))
