"""Test that a plain step is recorded as any other, and what happens where it turns out not to be one."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from harness.analysis.oom.report import OomPhase
from harness.attach.batches import batch_axis
from harness.attach.ending import ScriptStopped
from harness.attach.guard import ScriptGuard
from harness.attach.numbering import GRADIENTS_ENDED
from harness.attach.plain_step import PlainStep
from harness.attach.session import Session
from harness.store.home import Home
from harness.watch.memory import OWN_NS
from tests.attach_factories import attached, recorded
from tests.script_loops import BATCH, EVENTFUL, EXTRAS, SAMPLES, STEPS, Loop, watched

_LENGTH = 6


@pytest.mark.parametrize("has_loader", [True, False])
def test_settled_steps_of_a_plain_loop_are_taken_at_their_end(tmp_path: Path, *, has_loader: bool) -> None:
    loop = Loop(has_loader=has_loader)
    plain, rows, gaps_ns = watched(tmp_path, loop)
    assert plain >= STEPS // 2
    assert [row.step for row in rows] == list(range(1, STEPS + 1))
    assert [row.loss for row in rows] == loop.losses
    assert [row.samples for row in rows] == [BATCH] * (STEPS - 1) + [SAMPLES % BATCH]
    assert not gaps_ns
    for row in rows[1:]:  # The first one began before the watch.
        phases = (row.forward_ns, row.backward_ns, row.optimizer_ns)
        assert all(phase_ns > 0 for phase_ns in phases)
        assert (row.data_wait_ns > 0) is has_loader
        assert sum(phases) + row.data_wait_ns <= row.step_ns


def test_tokens_are_counted_in_plain_steps_too(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(4 * _LENGTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randint(0, 10, (SAMPLES, _LENGTH)))
    count = 0
    with attached(tmp_path) as (session, folder, guard):
        for (inputs,) in DataLoader(data, batch_size=BATCH):
            model(inputs).sum().backward()
            count += bool(session.plain.times_ns)
            optimizer.step()
        session.end(None)
        assert guard.message is None
    assert count >= STEPS // 2
    assert [row.tokens for row in recorded(folder).steps] == [
        *[BATCH * _LENGTH] * (STEPS - 1),
        SAMPLES % BATCH * _LENGTH,
    ]


def test_samples_are_those_of_the_models_inputs_where_batches_are_no_tensors(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes: Any = list(range(1, STEPS + 1))
    count = 0
    with attached(tmp_path) as (session, folder, guard):
        for batch in DataLoader(sizes, batch_size=None, collate_fn=str):
            model(torch.ones(int(batch), 3)).sum().backward()
            count += bool(session.plain.times_ns)
            optimizer.step()
        session.end(None)
        assert guard.message is None
    assert count >= STEPS // 2
    assert [row.samples for row in recorded(folder).steps] == sizes


def test_what_another_thread_does_with_the_same_model_is_of_no_step(tmp_path: Path) -> None:
    """It calls the model, or steps the optimizer, where the training is about to do so."""
    loop, count = Loop(), 0

    def in_another_thread(work: Callable[[], Any]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with attached(tmp_path) as (session, folder, guard):
        for step, (inputs,) in enumerate(DataLoader(loop.data, batch_size=BATCH), start=1):
            if step > 1:  # The first thread that trains is the one that is followed.
                in_another_thread(partial(loop.model, inputs[:1]))
            loop.model(inputs).square().mean().backward()
            if step > 1:
                in_another_thread(loop.optimizer.step)
            count += len(session.plain.times_ns) == GRADIENTS_ENDED
            loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    assert count >= STEPS // 2
    rows = recorded(folder).steps
    assert [row.step for row in rows] == list(range(1, STEPS + 1))
    assert [row.samples for row in rows] == [BATCH] * (STEPS - 1) + [SAMPLES % BATCH]


@pytest.mark.parametrize("has_loader", [True, False])
def test_a_model_learns_the_same_under_watch(tmp_path: Path, *, has_loader: bool) -> None:
    bare, other = Loop(has_loader=has_loader), Loop(has_loader=has_loader)
    bare.train()
    watched(tmp_path, other)
    assert other.losses == bare.losses
    assert torch.equal(other.model.weight, bare.model.weight)


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize("extra", EXTRAS)
def test_whatever_else_happens_in_a_step_no_step_and_no_time_is_lost(
    tmp_path: Path, extra: str, *, has_loader: bool
) -> None:
    plain, rows, gaps_ns = watched(tmp_path, Loop(extra, has_loader=has_loader))
    assert 0 < plain < STEPS
    assert [row.step for row in rows] == list(range(1, STEPS + 1))
    assert all(row.loss is not None for row in rows)
    assert not gaps_ns.keys() - {EVENTFUL, EVENTFUL + 1}
    before, after = rows[EVENTFUL - 3], rows[-2]
    assert before.samples == after.samples == BATCH
    assert (after.data_wait_ns > 0) is has_loader
    assert min(after.forward_ns, after.backward_ns, after.optimizer_ns) > 0


def test_an_error_in_a_plain_step_leaves_the_phase_that_failed(tmp_path: Path) -> None:
    loop = Loop()

    def batches() -> Iterator[torch.Tensor]:
        for number, (inputs,) in enumerate(DataLoader(loop.data, batch_size=BATCH)):
            yield inputs if number < EVENTFUL else inputs[:, :3]

    def train() -> None:
        for inputs in batches():
            loss = loop.model(inputs).square().mean()
            loss.backward()
            loop.optimizer.step()

    with attached(tmp_path) as (session, folder, _):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            train()
        assert session.plain.oom_phase is OomPhase.FORWARD
        session.end(None)
    assert [row.step for row in recorded(folder).steps] == list(range(1, EVENTFUL + 1))


def test_a_loss_of_several_elements_is_unknown(tmp_path: Path) -> None:
    loop, plain = Loop(), 0
    with attached(tmp_path) as (session, folder, guard):
        for (inputs,) in DataLoader(loop.data, batch_size=BATCH):
            output = loop.model(inputs)
            output.backward(torch.ones_like(output))
            plain += bool(session.plain.times_ns)
            loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    assert plain >= STEPS // 2
    assert {row.loss for row in recorded(folder).steps} == {None}


def read_losses(loop: Loop, session: Session) -> Iterator[torch.Tensor]:
    """Yield the loss of each step before its backward pass. The steps are long enough to be read each, and
    readings take no time, so that none is left out on a busy machine."""
    for number, (inputs,) in enumerate(DataLoader(loop.data, batch_size=BATCH)):
        loss = loop.model(inputs).square().mean()
        time.sleep(OWN_NS / 1e9)
        if number == 1:
            memory = session.remarks.observation.steps.memory
            memory._durations_ns.clear()
            memory._cpu_ns = lambda: 0
        yield loss
        loop.optimizer.step()


def test_steps_with_a_reading_of_the_memory_are_plain_and_have_a_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, plain = Loop(), 0
    with attached(tmp_path) as (session, folder, guard):
        held = torch.zeros(1 << 20)  # Other objects in the heap of this process may be freed meanwhile.
        for number, loss in enumerate(read_losses(loop, session)):
            if number == EVENTFUL:  # From here on all there is to do is to measure.
                observation = session.remarks.observation
                monkeypatch.setattr(observation, "plain_step_ended", Mock(side_effect=AssertionError))
            loss.backward()
            plain += bool(session.plain.times_ns)
        monkeypatch.undo()
        session.end(None)
        assert guard.message is None
    assert held.numel() == 1 << 20
    assert plain >= STEPS // 2
    read = [row for row in recorded(folder).steps if row.allocated_bytes is not None]
    assert len(read) >= STEPS // 2
    assert all(row.peak_allocated_bytes is not None for row in read)


def stop_in_a_quiet_step(loop: Loop, session: Session) -> None:
    """Train until a stop arrives in the middle of a step after which nothing else is due."""
    for number, loss in enumerate(read_losses(loop, session), start=1):
        loss.backward()
        if number == EVENTFUL:
            assert session.plain.until_step > number
            session.inbox.stop("Enough.")


def test_a_stop_that_arrives_in_a_quiet_step_ends_the_script_with_it(tmp_path: Path) -> None:
    with attached(tmp_path) as (session, folder, guard):
        with pytest.raises(ScriptStopped):
            stop_in_a_quiet_step(Loop(), session)
        session.end(None)
        assert guard.message is None
    assert len(recorded(folder).steps) == EVENTFUL


def test_an_error_in_a_reading_of_a_plain_step_ends_the_watch_and_not_the_script(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as (session, folder, guard):
        for number, loss in enumerate(read_losses(loop, session)):
            if number == EVENTFUL:
                assert session.plain.times_ns
                memory = session.remarks.observation.steps.memory
                memory._note_peak = Mock(side_effect=OSError("no statistics"))
            loss.backward()
        assert guard.message is not None
        session.end(None)
    assert "no statistics" in guard.message
    assert len(recorded(folder).steps) == EVENTFUL


def test_no_search_through_the_process_interrupts_a_script_whose_models_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, search = Loop(), Mock(wraps=gc.get_objects)
    with stepscope.watch(loop.model, loop.optimizer, home=tmp_path):
        monkeypatch.setattr(gc, "get_objects", search)
        loop.train()
    search.assert_not_called()


def test_steps_that_are_never_plain_are_soon_expected_seldom() -> None:
    plain, tried = PlainStep(ScriptGuard()), 0
    for step in range(1, 200):
        if plain.may_begin(step):
            tried += 1
            plain.times_ns.append(step)
            plain.leave(step)
    assert tried == 8
    assert not plain.times_ns


def _of(*shape: int) -> Callable[[], Any]:
    return lambda: (torch.zeros(shape), torch.zeros(3))


@pytest.mark.parametrize(
    ("batch", "batch_size", "axis"),
    [
        (_of(8, 3, 32, 32), 8, 0),
        (_of(35, 8), 8, 1),
        (_of(8, 8), 8, 0),
        (_of(35, 7), 8, 0),
        (_of(64, 1, 28, 28), 1, 0),
        (_of(35, 8), None, 0),
        (_of(8), 4, 0),
        (lambda: "no tensor", 4, 0),
    ],
)
def test_samples_are_counted_along_the_dimension_that_has_the_size_of_the_loaders_batch(
    batch: Callable[[], Any], batch_size: int | None, axis: int
) -> None:
    assert batch_axis(batch(), batch_size) == axis


class OwnBatches:
    """Batches of (sequence, batch), from no loader of torch."""

    batch_size = BATCH

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.randn(7, size, 3) for size in (*[BATCH] * 9, 2)])


def test_batches_of_an_iterable_with_a_batch_size_are_counted_by_it(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.watch(model, optimizer, home=tmp_path) as run:
        for inputs in run.steps(OwnBatches()):
            model(inputs).mean().backward()
            optimizer.step()
    (folder,) = Home(tmp_path).runs()
    assert [row.samples for row in recorded(folder).steps] == [BATCH] * 9 + [2]


def test_batches_of_sequences_first_count_the_sequences_uneven_ones_too(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(SAMPLES, 7, 3))

    def sequence_first(items: list[Any]) -> torch.Tensor:
        return torch.stack([item for (item,) in items], dim=1)

    with attached(tmp_path) as (session, folder, _):
        for inputs in DataLoader(data, batch_size=BATCH, collate_fn=sequence_first):
            model(inputs).mean().backward()
            optimizer.step()
        session.end(None)
    # The batch of the first step came before the watch.
    _, *samples = [row.samples for row in recorded(folder).steps]
    assert samples == [BATCH] * (STEPS - 2) + [SAMPLES % BATCH]
