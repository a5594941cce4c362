"""A reader of pickles that contain only plain data; it rejects classes, calls and everything else.

Python's unpickler can be restricted to reject classes, but a crafted file can still make it reserve any
amount of memory or hash for hours. This reader supports only the opcodes of dicts, lists, tuples, strings,
numbers and bytes. It takes one pass and limits the number of opcodes, containers and open marks, so that time
and memory are proportional to the size of the file.
"""

import struct
from itertools import repeat
from typing import Any

from harness.errors import StepscopeError

MOST_BYTES = 256 << 20
MOST_OPCODES = 30_000_000
# An empty list takes one byte of a file and 56 of memory. A snapshot of the two million events that are read
# has about five million containers.
MOST_CONTAINERS = 8_000_000
# A snapshot has six marks open at a time.
MOST_MARKS = 500
# Larger integers can be chosen so that all keys of a dict have the same hash.
_LARGEST_KEY = 2**60
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
    """A file is not a pickle of plain data."""


def load_plain(data: bytes, most_opcodes: int = MOST_OPCODES, most_containers: int = MOST_CONTAINERS) -> Any:
    """Parse `data`. Raises PickleError when it is damaged, too large, or not plain data."""
    if len(data) > MOST_BYTES:
        raise PickleError(f"It has {len(data):,} bytes; at most {MOST_BYTES:,} are read.")
    try:
        return _Reader(data, most_opcodes, most_containers).run()
    except struct.error:
        raise PickleError(_CUT_OFF) from None
    except IndexError:
        raise PickleError("It is cut off or damaged: a part is used that was never there.") from None
    except KeyError:
        raise PickleError("It is damaged: it refers to a part that was never there.") from None
    except UnicodeDecodeError:
        raise PickleError("It is damaged: a text in it is no UTF-8.") from None


# MARK, SETITEMS, EMPTY_DICT, EMPTY_LIST, APPENDS, TUPLE.
_CONTAINERS = frozenset({0x28, 0x75, 0x7D, 0x5D, 0x65, 0x74})
_CUT_OFF = "It ends in the middle: it is cut off or damaged."


class _Reader:
    def __init__(self, data: bytes, most_opcodes: int, most_containers: int) -> None:
        self._data = data
        self._most_opcodes = most_opcodes
        self._most_containers = most_containers
        self._memo: dict[int, Any] = {}
        self._tuples = 0
        self._lists = 0

    def run(self) -> Any:
        """Process the opcodes in one pass, frequent ones first. A mark pushes the stack and begins a new one,
        so that no search for the mark is needed."""
        data, memo, size = self._data, self._memo, len(self._data)
        stack: list[Any] = []
        aside: list[list[Any]] = []
        at = 0
        for _ in repeat(None, self._most_opcodes):
            code = data[at]
            at += 1
            if code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[_UINT(data, at)[0]])
                at += 4
            elif code == 0x8C:  # SHORT_BINUNICODE
                end = at + 1 + data[at]
                if end > size:
                    raise PickleError(_CUT_OFF)
                stack.append(data[at + 1 : end].decode("utf-8", "surrogatepass"))
                at = end
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code in _CONTAINERS:
                stack = self._contain(code, stack, aside)
            elif code == 0x2E:  # STOP
                return _whole(stack, aside)
            else:
                at = self._act(code, at, stack)
        raise PickleError(f"It has more than {self._most_opcodes:,} parts, which is more than is read.")

    def _contain(self, code: int, stack: list[Any], aside: list[list[Any]]) -> list[Any]:
        """Open, fill or close a container; the stack from here on."""
        if code == 0x75:  # SETITEMS
            below = _below(aside)
            _set(below[-1], stack)
            return below
        if code in (0x7D, 0x5D):  # EMPTY_DICT, EMPTY_LIST
            stack.append({} if code == 0x7D else [])
            self._lists += 1
            if self._lists > self._most_containers:
                raise self._too_many()
            return stack
        if code == 0x28:  # MARK
            if len(aside) == MOST_MARKS:
                raise PickleError(f"It has more than {MOST_MARKS} lists and dicts within each other.")
            aside.append(stack)
            return []
        below = _below(aside)
        if code == 0x65:  # APPENDS
            _as_list(below[-1]).extend(stack)
        else:  # TUPLE
            below.append(self._tuple(stack))
        return below

    def _act(self, code: int, at: int, stack: list[Any]) -> int:
        """Process a less frequent opcode; return the position of the next one."""
        data = self._data
        if code in _NUMBERS:
            read = _NUMBERS[code]
            stack.append(read.unpack_from(data, at)[0])
            return at + read.size
        if code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
            return at
        if code in _SIZED:
            length = _SIZED[code]
            at += length.size
            end: int = at + length.unpack_from(data, at - length.size)[0]
            if end > len(data):
                raise PickleError(_CUT_OFF)
            part = data[at:end]
            if code in _TEXTS:
                stack.append(part.decode("utf-8", "surrogatepass"))
            else:
                stack.append(part if code in _BYTES else int.from_bytes(part, "little", signed=True))
            return end
        if code in _SKIPPED:
            return at + _SKIPPED[code]
        if code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
            form = _BYTE if code == 0x71 else _LONG
            self._memo[form.unpack_from(data, at)[0]] = stack[-1]
            return at + form.size
        self._build(code, stack)
        return at

    def _build(self, code: int, stack: list[Any]) -> None:
        """Process a less frequent opcode for containers."""
        match code:
            case 0x85 | 0x86 | 0x87:  # TUPLE1, TUPLE2, TUPLE3
                size = code - 0x84
                if len(stack) < size:
                    raise IndexError
                stack[-size:] = [self._tuple(stack[-size:])]
            case 0x61:  # APPEND
                item = stack.pop()
                _as_list(stack[-1]).append(item)
            case 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            case _:
                self._refuse(code)

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        self._tuples += 1
        if self._tuples > self._most_containers:
            raise self._too_many()
        return tuple(items)

    def _too_many(self) -> PickleError:
        return PickleError(f"It has more than {self._most_containers:,} lists and dicts; it is not read.")

    def _refuse(self, code: int) -> None:
        if code in _CODE:
            raise PickleError(f"It asks to {_CODE[code]}, which a snapshot never does; nothing was run.")
        raise PickleError(f"It is no pickle of plain data (opcode {code:#04x}).")


def _whole(stack: list[Any], aside: list[list[Any]]) -> Any:
    """The unpickled object, after the pickle's end."""
    if len(stack) != 1 or aside:
        raise PickleError("It is damaged: it ends before all its parts are put together.")
    return stack[0]


def _below(aside: list[list[Any]]) -> list[Any]:
    """Pop the stack below the newest mark."""
    if not aside:
        raise PickleError("It is damaged: a list or dict ends that never began.")
    return aside.pop()


def _as_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise PickleError("It is damaged: something is appended to what is no list.")
    return value


def _set(value: Any, items: list[Any]) -> None:
    """Set items of a dict. Keys must be strings or small integers: hashing nested keys can take forever."""
    if type(value) is not dict or len(items) % 2:
        raise PickleError("It is damaged: a key is set in what is no dict.")
    keys = items[::2]
    if not set(map(type, keys)) <= _TEXT:
        for key in keys:
            if type(key) is int and not -_LARGEST_KEY < key < _LARGEST_KEY:
                raise PickleError("It has a number of more than 60 bits as a key; snapshots have none.")
            if type(key) not in (str, int):
                raise PickleError(f"It has a key of the kind {type(key).__name__}; snapshots have none.")
    value.update(zip(keys, items[1::2], strict=True))


_TEXT = {str}
_BYTE, _LONG, _HUGE = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q")
_UINT = _LONG.unpack_from
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
_NUMBERS = {0x4A: struct.Struct("<i"), 0x4D: struct.Struct("<H"), 0x47: struct.Struct(">d")}
_TEXTS = frozenset({0x58, 0x8D})
_BYTES = frozenset({0x43, 0x42, 0x8E})
# Values with a length prefix: texts, bytes, and LONG1.
_SIZED = {0x58: _LONG, 0x8D: _HUGE, 0x43: _BYTE, 0x42: _LONG, 0x8E: _HUGE, 0x8A: _BYTE}
# PROTO and FRAME, with the lengths of their arguments.
_SKIPPED = {0x80: 1, 0x95: 8}
