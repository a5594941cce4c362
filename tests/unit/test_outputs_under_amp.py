"""Outputs of models under a script's mixed precision: what the script gets is in float32."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from harness.attach.autocast import in_float32

B16, F32 = torch.bfloat16, torch.float32


def half() -> Tensor:
    return torch.full((3,), 0.5, dtype=B16)


class Pair(NamedTuple):
    """An output with names."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Record:
    """An output that allows no assignment."""

    value: Any
    name: str = "x"


@dataclass(slots=True)
class Slots:
    """An output without a dictionary of attributes."""

    value: Any


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    """One that allows no assignment either."""

    value: Any


class Batch:
    """A container with the methods of a mapping that is none."""

    def __init__(self, **items: Any) -> None:
        vars(self).update(items)

    def __getitem__(self, key: str) -> Any:
        return vars(self)[key]

    def __setitem__(self, key: str, value: Any) -> None:
        vars(self)[key] = value

    def keys(self) -> Iterator[str]:
        return iter(vars(self))


class Plain:
    """An object with attributes, as tianshou's Batch."""

    def __init__(self, **items: Any) -> None:
        vars(self).update(items)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class Locked(Batch):
    """A container that refuses to be changed."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise RuntimeError(f"{key} is locked")


class Of(tuple[Any, ...]):
    """A tuple that is made in another way than others."""

    def __new__(cls, first: Any, second: Any) -> "Of":
        return super().__new__(cls, (first, second))


def tensors(output: Any) -> list[Tensor]:
    """The tensors in an output of the kinds above."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, list | tuple):
        return [one for item in output for one in tensors(item)]
    if isinstance(output, dict):
        return tensors(list(output.values()))
    if isinstance(output, Slots | FrozenSlots):
        return tensors(output.value)
    return tensors(list(vars(output).values())) if hasattr(output, "__dict__") else []


@pytest.mark.parametrize(
    "make",
    [
        lambda: half(),
        lambda: [half(), (half(), {"a": half()})],
        lambda: Pair(half(), [half()]),
        lambda: Record(half()),
        lambda: Record(Pair(half(), Record(half()))),
        lambda: Batch(logits=half(), state=Batch(hidden=half())),
        lambda: Slots((half(), FrozenSlots({"a": half()}))),
        lambda: (Record(half()), Batch(logits=half())),
        lambda: Plain(logits=half(), state=Plain(hidden=half())),
        lambda: SimpleNamespace(value=half()),
        lambda: torch.max(half().reshape(1, 3), dim=1).values,
    ],
)
def test_every_tensor_of_an_output_is_in_float32(make: Any) -> None:
    output = make()
    converted = in_float32(output)
    assert type(converted) is type(output)
    assert {one.dtype for one in tensors(converted)} == {F32}


def test_a_distribution_samples_in_float32() -> None:
    for distribution in (Normal(half(), half()), Independent(Normal(half(), half()), 1)):
        assert in_float32(distribution).sample().dtype == F32
    policy = in_float32((Categorical(logits=half()), half()))[0]
    assert policy.log_prob(policy.sample()).dtype == policy.probs.dtype == F32


def test_the_gradient_of_a_distribution_reaches_the_model() -> None:
    layer = nn.Linear(3, 3).to(B16)
    policy = in_float32(Categorical(logits=layer(half())))
    policy.log_prob(torch.tensor(1)).backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize(
    "output",
    [
        Locked(logits=half()),
        Of(half(), half()),
        MappingProxyType({"a": half()}),
        SimpleNamespace(layers=[SimpleNamespace(keys=half())]),
        Record,
        torch.nn.ParameterDict({"a": half()}),
        {1, 2},
        "text",
        None,
    ],
)
def test_what_cannot_be_changed_is_returned_as_it_is(output: Any) -> None:
    before = [one.dtype for one in tensors(output)]
    assert in_float32(output) is output
    assert [one.dtype for one in tensors(output)] == before


def test_an_output_that_contains_itself_is_returned() -> None:
    output: list[Any] = [half()]
    output.append(output)
    assert in_float32(output)[0].dtype == F32


def test_an_output_without_half_precision_is_the_same_object() -> None:
    output = [torch.ones(1), (torch.ones(1), {"a": 1})]
    assert in_float32(output) is output
