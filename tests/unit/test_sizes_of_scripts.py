"""The sizes of a script's model and of its batches, whatever these are made of."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.attach_factories import steps_of
from tests.loader_factories import Pairs, watched

_COUNT = 10


class Graphs(Dataset[Tensor]):
    """Graphs with 3 to 5 nodes each."""

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3 + index % 3, 2), float(index))


class GraphStream(IterableDataset[Tensor]):
    """The same, one after the other."""

    def __iter__(self) -> Iterator[Tensor]:
        return (Graphs()[index] for index in range(_COUNT))


class MadeBatches(Dataset[Tensor]):
    """Batches of four samples that the dataset makes itself."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(4, 2)


class Joined:
    """Several graphs as one, as of a library for graphs: no sequence and no mapping."""

    def __init__(self, graphs: list[Tensor]) -> None:
        self.nodes = torch.cat(graphs)


def as_tuple(graphs: list[Tensor]) -> tuple[Any, ...]:
    """Batches of what cannot be stacked, as in the detection of objects."""
    return tuple(graphs), tuple(len(graph) for graph in graphs)


def as_list(graphs: list[Tensor]) -> list[Tensor]:
    """Nodes first, which no dimension of the batch counts."""
    return [torch.cat(graphs), torch.tensor([len(graph) for graph in graphs])]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: Any) -> Tensor:
        nodes = batch.nodes if isinstance(batch, Joined) else batch
        while not isinstance(nodes, Tensor):
            nodes = nodes[0]
        mean: Tensor = self.layer(nodes).square().mean()
        return mean


def train(loader: DataLoader[Any], before: Callable[[int], None] = lambda _step: None) -> None:
    """Train for one epoch; `before` is called in each step, before its end."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step, batch in enumerate(loader, start=1):
        before(step)
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("collate", [Joined, as_tuple, as_list])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_samples_are_the_indices_of_a_batch_whatever_it_is_made_of(
    tmp_path: Path, collate: Callable[[list[Tensor]], Any], workers: int
) -> None:
    loader = DataLoader(Graphs(), batch_size=4, collate_fn=collate, num_workers=workers)
    assert [row.samples for row in steps_of(tmp_path, partial(train, loader)).steps] == [4, 4, 2]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_samples_are_the_indices_of_a_batch_after_a_change_of_its_size(tmp_path: Path, workers: int) -> None:
    with watched(tmp_path) as run:

        def before(step: int) -> None:
            if step == 2:
                run.request(batch_size=3)

        train(DataLoader(Graphs(), batch_size=2, collate_fn=Joined, num_workers=workers), before)
    assert run.samples_per_step() == [2, 2, 3, 3]


def none_of_use(graphs: list[Tensor]) -> Tensor | None:
    """Return None for a batch that has nothing of use, as with samples that could not be read."""
    return torch.cat(graphs) if any(graph[0, 0] % 4 == 1 for graph in graphs) else None


@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_that_the_collate_function_leaves_out_has_no_samples(tmp_path: Path, size: int) -> None:
    def train_with_some() -> None:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for batch in DataLoader(Graphs(), batch_size=size, collate_fn=none_of_use):
            if batch is not None:
                model(batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, train_with_some).steps] == [size] * 3


def test_samples_are_the_indices_that_a_batch_sampler_of_the_script_draws(tmp_path: Path) -> None:
    loader = DataLoader(Graphs(), batch_sampler=Pairs(_COUNT), collate_fn=Joined)
    assert [row.samples for row in steps_of(tmp_path, partial(train, loader)).steps] == [2] * 5


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        (DataLoader(MadeBatches(), batch_size=None), [4, 4, 4]),
        (DataLoader(GraphStream(), batch_size=5, collate_fn=Joined), [0, 0]),
    ],
    ids=["whole batches", "stream"],
)
def test_without_indices_of_samples_they_are_counted_in_the_tensors_if_there_are_any(
    tmp_path: Path, loader: DataLoader[Any], samples: list[int]
) -> None:
    assert [row.samples for row in steps_of(tmp_path, partial(train, loader)).steps] == samples


class Single(Dataset[tuple[Tensor, Tensor]]):
    """Samples of a shape, whose features are no samples, and their targets."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full(self.shape, float(index)), torch.tensor(index)


class SingleStream(IterableDataset[Any]):
    """The same, one after the other."""

    def __iter__(self) -> Iterator[Any]:
        return (Single(2)[index] for index in range(_COUNT))


def one_by_one(loader: DataLoader[Any]) -> Iterator[Tensor]:
    """Each sample as a batch of one."""
    return (sample[None] for sample, _ in loader)


def stacked(loader: DataLoader[Any]) -> Iterator[Tensor]:
    """Five samples as a batch."""
    samples = (sample for sample, _ in loader)
    while batch := list(islice(samples, 5)):
        yield torch.stack(batch)


def as_they_are(loader: DataLoader[Any]) -> Iterator[Tensor]:
    """Each sample without a dimension for batches."""
    return (sample for sample, _ in loader)


@pytest.mark.parametrize(
    ("data", "batches", "expected", "workers"),
    [
        (Single(2), one_by_one, [1] * _COUNT, 0),
        pytest.param(Single(2), one_by_one, [1] * _COUNT, 2, marks=pytest.mark.slow),
        (Single(3, 4, 2), one_by_one, [1] * _COUNT, 0),
        (Single(2), stacked, [5, 5], 0),
        (Single(2), as_they_are, [0] * _COUNT, 0),
        (SingleStream(), one_by_one, [1] * _COUNT, 0),
    ],
    ids=["vectors", "vectors from workers", "images", "stacked", "without a batch", "stream"],
)
def test_the_models_inputs_are_counted_where_a_loader_does_not_batch_its_samples(
    tmp_path: Path,
    data: Dataset[Any],
    batches: Callable[[DataLoader[Any]], Iterator[Tensor]],
    expected: list[int],
    workers: int,
) -> None:
    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for inputs in batches(DataLoader(data, batch_size=None, num_workers=workers)):
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == expected


def test_a_sampler_of_lists_counts_its_indices_where_torch_does_not_batch(tmp_path: Path) -> None:
    sampler: Any = Pairs(_COUNT)

    class Rows(Single):
        def __getitem__(self, index: Any) -> Any:
            return torch.ones(7, 2)  # Nothing of it counts samples.

    loader = DataLoader(Rows(2), batch_size=None, sampler=sampler)
    assert [row.samples for row in steps_of(tmp_path, partial(train, loader)).steps] == [2] * 5


def test_a_lazy_model_is_followed_and_its_size_known_after_its_first_step(tmp_path: Path) -> None:
    def script() -> None:
        model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(3):
            model(torch.ones(5, 7)).mean().backward()
            optimizer.step()

    log = steps_of(tmp_path, script)
    assert [row.samples for row in log.steps] == [5, 5, 5]
    assert log.run.model_parameters == 3 * 7 + 3 + 3 + 1


def test_tensors_of_no_module_are_counted_and_have_neither_samples_nor_a_forward_pass(tmp_path: Path) -> None:
    def script() -> None:
        weights = torch.ones(4, 3, requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=1e-6)
        for _ in range(3):
            weights.square().mean().backward()
            optimizer.step()

    log = steps_of(tmp_path, script)
    assert log.run.model_parameters == 12
    assert [(row.samples, row.forward_ns) for row in log.steps] == [(0, 0)] * 3
    assert all(row.backward_ns and row.optimizer_ns for row in log.steps[1:])


def test_the_size_of_several_models_is_that_of_all(tmp_path: Path) -> None:
    def script() -> None:
        one, other = nn.Linear(3, 2), nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in (one, other)]
        for _ in range(3):
            for optimizer, model, width in zip(optimizers, (one, other), (3, 2), strict=True):
                model(torch.ones(4, width)).mean().backward()
                optimizer.step()

    assert steps_of(tmp_path, script).run.model_parameters == 3 * 2 + 2 + 2 + 1


class OwnOptimizer:
    """As those of fastai: no optimizer of torch's, whose `zero_grad` clears the gradients in place."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = list(model.parameters())

    def step(self) -> None:
        for weight in self._weights:
            assert weight.grad is not None
            weight.data.add_(weight.grad.data, alpha=-1e-6)

    def zero_grad(self) -> None:
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.detach_()
                weight.grad.zero_()


def test_the_micro_batches_of_an_optimizer_that_is_not_torchs_are_of_one_step(
    tmp_path: Path,
) -> None:
    loader: DataLoader[Any] = DataLoader(torch.ones(24, 2), batch_size=4)  # type: ignore[arg-type]

    def script() -> None:
        optimizer = OwnOptimizer(model := nn.Linear(2, 1))
        for number, batch in enumerate((batch for _ in range(3) for batch in loader), start=1):
            model(batch).mean().backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    # Until the gradients are cleared for the first time nothing shows that they are of one step.
    assert samples == [4, 4, *[8] * 8]


def update_by_hand(model: nn.Module, batch: Tensor, clears: str) -> None:
    if clears == "before the call":
        model.zero_grad()
    loss = model(batch).mean()
    if clears == "after the call":
        model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(1e-6 * torch.ones_like(weight))
            if clears == "by hand":
                weight.grad = None


@pytest.mark.slow
@pytest.mark.parametrize("clears", ["before the call", "after the call", "by hand"])
@pytest.mark.parametrize("evaluates", [True, False])
def test_without_an_optimizer_samples_are_those_of_the_step_that_uses_them(
    tmp_path: Path, clears: str, *, evaluates: bool
) -> None:
    def script() -> None:
        data: Any = torch.ones(10, 2)
        model, loader = nn.Linear(2, 1), DataLoader(data, batch_size=4)
        held_out = DataLoader(data, batch_size=5)
        for _ in range(3):
            model.train()
            for batch in loader:
                update_by_hand(model, batch, clears)
            model.eval()
            for batch in held_out if evaluates else ():
                with torch.no_grad():
                    model(batch)

    log = steps_of(tmp_path, script)
    assert [row.samples for row in log.steps] == [4, 4, 2] * 3
    assert log.values["batch_size"] == 4


def test_an_optimizer_that_learns_from_the_same_batch_as_one_before_adds_no_samples(tmp_path: Path) -> None:
    def script() -> None:
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        of_critic, of_generator = (torch.optim.SGD(one.parameters(), lr=1e-3) for one in (critic, generator))
        for _ in range(8):
            real, noise = torch.randn(32, 4), torch.randn(32, 4)
            of_critic.zero_grad()
            (critic(real).mean() - critic(generator(noise).detach()).mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(generator(noise)).mean().backward()
            of_generator.step()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [32] * 8


@pytest.mark.parametrize("calls", [1, 3])
def test_the_tokens_of_all_micro_batches_count_where_a_closure_computes_the_last(
    tmp_path: Path, calls: int
) -> None:
    def script() -> None:
        model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        data: Any = torch.zeros(8 * 6, 5, dtype=torch.int64)
        for number, tokens in enumerate(DataLoader(data, batch_size=8), start=1):

            def closure(tokens: Tensor = tokens) -> float:
                for _ in range(calls):  # As LBFGS.
                    model(tokens).mean().backward()
                return 0.0

            if number % 2:
                model(tokens).mean().backward()
            else:
                optimizer.step(closure)
                optimizer.zero_grad()

    steps = steps_of(tmp_path, script).steps
    assert [(row.samples, row.tokens) for row in steps] == [(16, 80)] * 3


@pytest.mark.parametrize(("size", "samples"), [((96,), 0), ((6, 16), 6)])
def test_a_vector_of_floats_after_a_scalar_may_be_one_sample(
    tmp_path: Path, size: tuple[int, ...], samples: int
) -> None:
    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(size[-1], 1)

        def forward(self, time: Tensor, state: Tensor) -> Any:
            return self.layer(state) + time

    def script() -> None:
        model = Field()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.tensor(0.5), torch.randn(*size)).sum().backward()
            optimizer.step()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [samples] * 4
