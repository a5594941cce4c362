"""Reads pickles that hold nothing but plain data, and refuses every other: no class, no call, no surprise.

Python's own unpickler can be told to refuse classes, but a crafted file can still make it reserve any amount
of memory or hash for hours. This one knows only the opcodes that dicts, lists, tuples, strings, numbers and
bytes are made of, and counts what it does.
"""

import struct
from typing import Any

from harness.errors import StepscopeError

MOST_BYTES = 256 << 20
MOST_OPCODES = 30_000_000
_MARK = object()
_CODE = {
    ord("c"): "name a class",
    0x93: "name a class",
    ord("R"): "call a function",
    ord("b"): "set an object's state",
    ord("i"): "build an object",
    ord("o"): "build an object",
    0x81: "build an object",
    0x92: "build an object",
    ord("P"): "load a persistent object",
    ord("Q"): "load a persistent object",
    0x82: "use an extension",
    0x83: "use an extension",
    0x84: "use an extension",
}


class PickleError(StepscopeError):
    """A file is no pickle of plain data."""


def load_plain(data: bytes, most_opcodes: int = MOST_OPCODES) -> Any:
    """The value that `data` holds. Raises PickleError when it is damaged, too large, or more than data."""
    if len(data) > MOST_BYTES:
        raise PickleError(f"It has {len(data):,} bytes; at most {MOST_BYTES:,} are read.")
    try:
        return _Reader(data, most_opcodes).run()
    except (IndexError, struct.error, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise PickleError(f"It is damaged or no pickle ({type(error).__name__}: {error}).") from None


class _Reader:
    def __init__(self, data: bytes, most_opcodes: int) -> None:
        self._data = data
        self._at = 0
        self._most_opcodes = most_opcodes
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, act, stack, memo = self._data, self._act, self._stack, self._memo
        for _ in range(self._most_opcodes):
            code = data[self._at]
            self._at += 1
            if code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x68:  # BINGET
                stack.append(memo[data[self._at]])
                self._at += 1
            elif code == 0x2E:  # STOP
                (value,) = stack
                return value
            else:
                act(code)
        raise PickleError(f"It has more than {self._most_opcodes:,} parts, which is more than is read.")

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise PickleError("It ends in the middle: it is cut off or damaged.")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _act(self, code: int) -> None:
        stack = self._stack
        if code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _NUMBERS:
            stack.append(self._number(_NUMBERS[code]))
        elif code in _TEXTS:
            stack.append(self._take(self._number(_TEXTS[code])).decode("utf-8", "surrogatepass"))
        elif code in _BYTES:
            stack.append(self._take(self._number(_BYTES[code])))
        elif code == 0x8A:  # LONG1
            stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))
        elif code == 0x28:  # MARK
            stack.append(_MARK)
        elif code in (0x80, 0x95):  # PROTO, FRAME
            self._take(1 if code == 0x80 else 8)
        else:
            self._build(code)

    def _build(self, code: int) -> None:
        """The opcodes for containers, and for the memo."""
        stack = self._stack
        match code:
            case 0x7D:
                stack.append({})
            case 0x5D:
                stack.append([])
            case 0x29:
                stack.append(())
            case 0x85 | 0x86 | 0x87:
                size = code - 0x84
                stack[-size:] = [tuple(stack[-size:])]
            case 0x74:
                stack.append(tuple(self._marked()))
            case 0x61:
                item = stack.pop()
                _as_list(stack[-1]).append(item)
            case 0x65:
                items = self._marked()
                _as_list(stack[-1]).extend(items)
            case 0x73:
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            case 0x75:
                items = self._marked()
                _set(stack[-1], items)
            case 0x71:
                self._memo[self._number("<B")] = stack[-1]
            case 0x72:
                self._memo[self._number("<I")] = stack[-1]
            case 0x6A:
                stack.append(self._memo[self._number("<I")])
            case _:
                self._refuse(code)

    def _refuse(self, code: int) -> None:
        if code in _CODE:
            raise PickleError(f"It asks to {_CODE[code]}, which a snapshot never does; nothing was run.")
        raise PickleError(f"It is no pickle of plain data (opcode {code:#04x}).")

    def _marked(self) -> list[Any]:
        stack = self._stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is _MARK:
                items = stack[place + 1 :]
                del stack[place:]
                return items
        raise PickleError("It is damaged: a list or dict ends that never began.")


def _as_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise PickleError("It is damaged: something is appended to what is no list.")
    return value


def _set(value: Any, items: list[Any]) -> None:
    """Only strings and numbers may be keys: hashing what is nested can take forever."""
    if type(value) is not dict or len(items) % 2:
        raise PickleError("It is damaged: a key is set in what is no dict.")
    for key in items[::2]:
        if type(key) not in (str, int):
            raise PickleError(f"It has a key of the kind {type(key).__name__}; snapshots have none.")
    value.update(zip(items[::2], items[1::2], strict=True))


_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_NUMBERS = {0x4A: "<i", 0x4B: "<B", 0x4D: "<H", 0x47: ">d"}
_TEXTS = {0x8C: "<B", 0x58: "<I", 0x8D: "<Q"}
_BYTES = {0x43: "<B", 0x42: "<I", 0x8E: "<Q"}
