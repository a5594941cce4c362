"""The variables of frames that hold memory, whatever a script keeps it in."""

import io
import sys
import traceback
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.analysis.oom.report import LiveVariable
from harness.watch.oom import variables
from harness.watch.oom.arrays import Memory, memory_of
from harness.watch.oom.variables import MOST_VARIABLES, largest_variables
from tests.train_factories import raising

_BYTES = 4_000


class Buffer:
    """An object of a script's own."""

    def __init__(self) -> None:
        self.items = deque([torch.ones(1_000)])

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


class Broken(list[Tensor]):
    """A list that cannot be read as one."""

    def __iter__(self) -> Iterator[Tensor]:
        raise ZeroDivisionError


class Slotted:
    """An object without a dictionary; one of its attributes has no value."""

    __slots__ = ("items", "later")

    def __init__(self) -> None:
        self.items = [torch.ones(500)]


class HalfSlotted(Slotted):
    """An object with slots and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = {1: torch.ones(500)}


class Unfinished(nn.Module):
    """A module without modules."""

    def __init__(self) -> None:
        self.__dict__["kept"] = torch.ones(1_000)


class Keeper:
    """An object that keeps what it computes, and runs out of memory."""

    def __init__(self) -> None:
        self.outputs = [torch.ones(500), torch.ones(500)]

    def step(self) -> None:
        raise MemoryError


class Wrapper:
    """An object behind which there are others."""

    def __init__(self, module: Any, more: Any = None) -> None:
        self.module, self.more = module, more


def a_buffer(size_bytes: int) -> io.BytesIO:
    buffer = io.BytesIO()
    buffer.write(bytes(size_bytes))
    return buffer


def a_cache(limit: int | None) -> Callable[[int], Tensor]:
    """A function with a cache that holds two tensors."""

    @lru_cache(maxsize=limit)
    def load(_index: int) -> Tensor:
        return torch.ones(500)

    load(1)
    load(2)
    return load


def a_callback(tensor: Tensor) -> Callable[[], None]:
    return lambda: print(tensor)


class Attention:
    """A class that keeps in itself what its objects compute."""

    maps: ClassVar[list[Tensor]] = []


def variables_of(fill: Callable[[], FrameType], *owned: Tensor) -> dict[str, int]:
    frame = fill()
    variables = largest_variables([frame], [frame.f_lineno], torch.device("cpu"), owned)
    assert all(one.site.endswith(f":{frame.f_lineno} {frame.f_code.co_name}") for one in variables)
    return {one.name: one.held_bytes for one in variables}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(1_000),
        lambda: [torch.ones(500), (torch.ones(500),)],
        lambda: {"a": {"b": torch.ones(1_000)}},
        lambda: Broken([torch.ones(1_000)]),
        lambda: np.ones(500)[:1],
        lambda: bytes(_BYTES),
        lambda: a_cache(None),
        lambda: a_cache(8),
        lambda: partial(print, torch.ones(1_000)),
        lambda: [Slotted(), Slotted()],
        lambda: [a_callback(torch.ones(1_000))],
        lambda: a_callback(torch.ones(1_000)),
    ],
    ids=[
        "tensor",
        "list",
        "dict",
        "own list",
        "array",
        "bytes",
        "cache",
        "limited cache",
        "partial",
        "slots",
        "closures",
        "closure",
    ],
)
def test_what_a_variable_holds_is_found_in_any_container(make: Callable[[], Any]) -> None:
    def fill() -> FrameType:
        kept = make()
        assert kept is not None
        return sys._getframe()

    assert variables_of(fill) == {"kept": _BYTES}


@pytest.mark.parametrize(("make", "name"), [(Buffer, "kept.items"), (Unfinished, "kept.kept")])
def test_the_attribute_of_an_object_is_named(make: Callable[[], Any], name: str) -> None:
    def fill() -> FrameType:
        kept = make()
        assert kept is not None
        return sys._getframe()

    assert variables_of(fill) == {name: _BYTES}


@pytest.mark.parametrize("make", [lambda: a_buffer(_BYTES), lambda: array("d", [0.0] * (_BYTES // 8))])
def test_buffers_of_python_count(make: Callable[[], Any]) -> None:
    def fill() -> FrameType:
        kept = [make()]
        assert kept
        return sys._getframe()

    assert _BYTES <= variables_of(fill)["kept"] < 1.2 * _BYTES


def test_of_what_holds_the_same_the_variable_of_the_script_is_named() -> None:
    """A package calls the script's method, as a trainer does."""
    names: dict[str, Any] = {}
    source = "def fit(loop):\n    self = loop.module\n    return self.step()\n"
    exec(compile(source, "/usr/lib/python3/dist-packages/trainers/loop.py", "exec"), names)
    module = Keeper()
    trainer = Wrapper(Wrapper(module, torch.ones(30)))
    loop = Wrapper(module, trainer)
    try:
        names["fit"](loop)
    except MemoryError as error:
        calls = dict(traceback.walk_tb(error.__traceback__))
    variables = largest_variables(list(calls), list(calls.values()), torch.device("cpu"), ())
    assert (variables[0].name, variables[0].held_bytes) == ("module.outputs", _BYTES)
    assert {one.site.rpartition(":")[0] for one in variables} == {variables[0].site.rpartition(":")[0]}


def test_attributes_in_slots_are_named_as_others_are() -> None:
    def fill() -> FrameType:
        kept = HalfSlotted()
        assert kept.cache
        return sys._getframe()

    assert variables_of(fill) == {"kept.items": 2_000, "kept.cache": 2_000}


def test_the_attribute_of_a_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "maps", [torch.ones(1_000)])

    def fill() -> FrameType:
        kind = Attention
        assert kind.maps
        return sys._getframe()

    assert variables_of(fill) == {"kind.maps": _BYTES}


def test_weights_count_as_such_and_a_shared_storage_counts_once() -> None:
    weight = torch.ones(10_000)

    def fill() -> FrameType:
        parameters, part, kept = [weight], torch.ones(1_000), [torch.ones(1_000)]
        both = [part, *kept]
        itself: list[Any] = []
        itself.append(itself)
        assert parameters, both
        return sys._getframe()

    assert variables_of(fill, weight) == {"both": 2 * _BYTES}


def test_memory_of_another_device_does_not_count() -> None:
    def fill() -> FrameType:
        kept = torch.ones(1_000), np.ones(500)
        assert kept
        return sys._getframe()

    frame = fill()
    assert largest_variables([frame], [1], torch.device("cuda"), ()) == ()


def test_the_run_of_a_script_is_none_of_its_variables() -> None:
    def fill() -> FrameType:
        run = type("Run", (), {"__module__": "stepscope.run", "rows": None})()
        run.rows = torch.ones(1_000)
        return sys._getframe()

    assert variables_of(fill) == {}


def test_only_the_largest_are_listed() -> None:
    def fill() -> FrameType:
        one, two, three = torch.ones(7_000), torch.ones(6_000), torch.ones(5_000)
        four, five, six, tiny = torch.ones(4_000), torch.ones(3_000), torch.ones(2_000), torch.ones(1)
        assert all(part.numel() for part in (one, two, three, four, five, six, tiny))
        return sys._getframe()

    frame = fill()
    variables = largest_variables([frame], [7], torch.device("cpu"), ())
    assert [one.name for one in variables] == ["one", "two", "three", "four", "five"]
    assert len(variables) == MOST_VARIABLES
    assert variables[0] == LiveVariable("one", variables[0].site, 28_000, 1)


def test_a_frame_keeps_nothing_because_it_was_read() -> None:
    def fail() -> None:
        kept = torch.ones(1_000)
        alive.append(weakref.ref(kept))
        raise MemoryError(len(kept))

    alive: list[weakref.ref[Tensor]] = []
    with pytest.raises(MemoryError) as raised:
        fail()
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    variables = largest_variables(frames, [1] * len(frames), torch.device("cpu"), ())
    assert "kept" in {one.name for one in variables}
    traceback.clear_frames(raised.value.__traceback__)
    assert frames[-1].f_code is fail.__code__
    assert alive[0]() is None


class Property:
    """An object with a dictionary of its own making."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise KeyError("no dictionary")


def test_what_refuses_to_be_read_hides_nothing_else() -> None:
    sizes = list[int]()

    def fill() -> FrameType:
        lazy, other = {"head": nn.LazyLinear(3)}, Property()
        fake = torch.empty(1 << 30, device="meta")
        tokens = [(number, str(number)) for number in range(100_000)]
        kept = [torch.ones(1_000_000)]
        sizes.append(list.__sizeof__(tokens))
        assert lazy, (other, fake, tokens, kept)
        return sys._getframe()

    assert variables_of(fill) == {"kept": 1_000 * _BYTES, "tokens": sizes[0]}


def test_the_largest_variable_is_named_where_memory_runs_out_over_the_parts_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill() -> FrameType:
        kept, other = [torch.ones(1_000) for _ in range(3)], torch.ones(1_000)
        assert kept, other
        return sys._getframe()

    monkeypatch.setattr(variables, "_shares", raising(MemoryError()))
    assert variables_of(fill) == {"kept": 3 * _BYTES}


def test_what_lists_of_numbers_take_in_the_heap_counts() -> None:
    """Their numbers are outside of it."""

    def fill() -> FrameType:
        records = [[float(step)] * 100_000 for step in range(50)]
        assert records
        return sys._getframe()

    assert variables_of(fill) == {"records": pytest.approx(50 * 800_000, rel=0.01)}


def test_one_memory_counts_once_as_a_tensor_and_as_an_array() -> None:
    def fill() -> FrameType:
        array = np.ones(1_000)
        tensor, window = torch.from_numpy(array), np.lib.stride_tricks.sliding_window_view(array, 500)
        assert (tensor, window) is not None
        return sys._getframe()

    assert variables_of(fill) == {"array": 2 * _BYTES}


def test_a_mapped_file_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(bytes(1 << 20))

    def fill() -> FrameType:
        tokens = np.memmap(tmp_path / "tokens", dtype=np.uint8)
        kept = torch.ones(1_000)
        assert (tokens, kept) is not None
        return sys._getframe()

    assert variables_of(fill) == {"kept": _BYTES}


def test_a_search_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "_MOST_OBJECTS", 10)

    def fill() -> FrameType:
        kept = [torch.ones(1_000), *([number] for number in range(20)), torch.ones(1_000)]
        assert kept
        return sys._getframe()

    frame = fill()
    (one,) = largest_variables([frame], [1], torch.device("cpu"), ())
    assert (one.name, one.held_bytes, one.is_complete) == ("kept", _BYTES, False)


def test_the_locals_that_a_script_has_taken_stay_its_own() -> None:
    def fill() -> tuple[FrameType, dict[str, Any]]:
        kept = torch.ones(1_000)
        assert kept.numel()
        return sys._getframe(), locals()

    frame, taken = fill()
    largest_variables([frame], [1], torch.device("cpu"), ())
    assert "kept" in taken


def test_what_was_found_before_memory_ran_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill() -> FrameType:
        kept = [torch.ones(1_000) for _ in range(10)]
        assert kept
        return sys._getframe()

    notes = 0

    def note(value: Any, device: torch.device) -> Memory | None:
        nonlocal notes
        notes += 1
        if notes > 5:
            raise MemoryError
        return memory_of(value, device)

    monkeypatch.setattr(variables, "memory_of", note)
    frame = fill()
    (variable,) = largest_variables([frame], [frame.f_lineno], torch.device("cpu"), [])
    assert (variable.name, variable.blocks, variable.is_complete) == ("kept", 5, False)
