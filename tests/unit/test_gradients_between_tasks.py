"""Test gradients that are computed between two passes of a training, in evaluation mode, as those of the
Fisher information for elastic weight consolidation."""

from pathlib import Path
from time import perf_counter_ns

import pytest
from torch.utils.data import DataLoader

from tests.attach_factories import attached, record_each_evaluation, recorded
from tests.script_loops import BATCH, SAMPLES, STEPS, Loop

_PASSES = 4


@pytest.mark.parametrize("has_tests", [False, True])
@pytest.mark.parametrize("has_tasks", [False, True])
def test_gradients_in_evaluation_mode_before_a_pass_are_of_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_tasks: bool, has_tests: bool
) -> None:
    """`has_tasks` is whether each pass is over a loader of its own, `has_tests` whether the model is tested
    with a loader before them."""
    record_each_evaluation(monkeypatch)
    loop = Loop()
    loaders = [DataLoader(loop.data, batch_size=BATCH) for _ in range(_PASSES if has_tasks else 1)]
    held_out = DataLoader(loop.data, batch_size=SAMPLES)
    losses: list[float] = []
    fisher_ns: list[int] = []

    def compute_fisher() -> None:
        loop.model.eval()
        began_ns = perf_counter_ns()
        for number in range(6):
            loop.model.zero_grad()
            loop.model(loop.data[number][0]).square().sum().backward()
        fisher_ns.append(perf_counter_ns() - began_ns)

    with attached(tmp_path) as (session, folder, guard):
        for number in range(_PASSES):
            if number:
                compute_fisher()
            loop.model.train()
            for (inputs,) in loaders[number % len(loaders)]:
                loop.optimizer.zero_grad()
                loss = loop.model(inputs).square().mean()
                loss.backward()
                loop.optimizer.step()
                losses.append(loss.item())
            loop.model.eval()
            for (inputs,) in held_out if has_tests else []:
                loop.model(inputs)
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps] == ([BATCH] * (STEPS - 1) + [SAMPLES % BATCH]) * _PASSES
    assert [row.loss for row in log.steps] == pytest.approx(losses)
    evaluated = [STEPS * number + 1 for number in range(1, _PASSES + has_tests)]
    assert list(log.evaluations_ns) == evaluated
    for step, computed_ns in zip(evaluated, fisher_ns, strict=False):
        assert log.evaluations_ns[step] > computed_ns
    assert log.unexplained_gaps_ns() == {}


def test_gradients_in_evaluation_mode_before_each_batch_belong_to_the_steps(tmp_path: Path) -> None:
    loop = Loop()
    loader = DataLoader(loop.data, batch_size=BATCH)
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(2):
            batches = iter(loader)
            for _ in range(STEPS):
                loop.model.eval()(loop.data[0][0]).square().sum().backward()
                (inputs,) = next(batches)
                loop.model.train()(inputs).square().mean().backward()
                loop.optimizer.step()
                loop.optimizer.zero_grad()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps] == ([BATCH] * (STEPS - 1) + [SAMPLES % BATCH]) * 2
    assert [step for step in log.evaluations_ns if step > 4] == []
