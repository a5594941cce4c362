"""Changes of a loader that would harm the training: each is rejected with its reason."""

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler

from harness.records.run import CommandState
from tests.loader_factories import Numbers, SmallTraining, Watched, watched

_GUARDED = 'def main(): ...\n\nif __name__ == "__main__":\n    main()\n'


def answer_to(home: Path, loader: DataLoader[Any], **values: Any) -> tuple[str, str]:
    """The state and the message of the answer to values requested in the second step."""
    with watched(home) as run:
        _train(run, loader, **values)
    return run.answers()[-1]


def _train(run: Watched, loader: DataLoader[Any], **values: Any) -> None:
    small = SmallTraining()
    for step, batch in enumerate(loader, start=1):
        if step == 2:
            run.request(**values)
        small.step(batch)


@pytest.mark.parametrize(
    ("size", "drop_last", "state"),
    [
        (21, True, CommandState.REJECTED),
        (20, True, CommandState.APPLIED),
        (21, False, CommandState.APPLIED),
    ],
)
def test_a_batch_size_that_drops_every_sample_is_rejected(
    tmp_path: Path, size: int, state: CommandState, *, drop_last: bool
) -> None:
    loader = DataLoader(Numbers(20), batch_size=4, drop_last=drop_last)
    answered, message = answer_to(tmp_path, loader, batch_size=size)
    assert answered == state
    if state is CommandState.REJECTED:
        assert message == (
            "batch_size cannot be 21: the loader drops incomplete batches (drop_last=True), and an epoch has "
            "20 samples."
        )


def test_samples_that_a_batch_sampler_drops_are_those_of_its_own_sampler(tmp_path: Path) -> None:
    def a_loader() -> DataLoader[int]:
        sampler = SubsetRandomSampler(range(12))
        return DataLoader(Numbers(20), batch_sampler=BatchSampler(sampler, 4, drop_last=True))

    state, message = answer_to(tmp_path / "a", a_loader(), batch_size=13)
    assert state == CommandState.REJECTED
    assert message.endswith("and an epoch has 12 samples.")
    loader = a_loader()
    with watched(tmp_path / "b") as run:
        _train(run, loader, batch_size=6)
        again = iter(loader)
        assert len(loader) == len(again) == len(list(again)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "script", "is_rejected"),
    [
        ("spawn", "train()\n", True),
        ("forkserver", "no Python", True),
        ("spawn", _GUARDED, False),
        ("spawn", '"__main__" == __name__ and print()\n', False),
        ("spawn", "try:\n    if __name__ == '__main__': ...\nfinally: ...\n", False),
        ("spawn", None, False),
        ("fork", "train()\n", False),
    ],
)
def test_workers_that_would_run_the_script_again_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, script: str | None, *, is_rejected: bool
) -> None:
    main: Any = sys.modules["__main__"]
    monkeypatch.delattr(main, "__file__")
    if script is not None:
        path = tmp_path / "train.py"
        path.write_text(script)
        monkeypatch.setattr(main, "__file__", str(path), raising=False)
    start_method: Callable[..., str] = lambda **_options: method  # noqa: E731  # of one line
    monkeypatch.setattr(multiprocessing, "get_start_method", start_method)
    state, message = answer_to(tmp_path / "home", DataLoader(Numbers(20), batch_size=4), num_workers=1)
    assert (state == CommandState.REJECTED) == is_rejected, message
    if is_rejected:
        assert f"Workers begin by {method!r} here, which would run train.py again" in message


def test_the_length_of_an_iterator_follows_the_batch_size(tmp_path: Path) -> None:
    loader = DataLoader(Numbers(20), batch_size=4)
    lengths = []
    with watched(tmp_path) as run:
        small = SmallTraining()
        for epoch in range(3):
            batches: Any = iter(loader)
            for step, batch in enumerate(batches):
                if (epoch, step) == (1, 1):
                    run.request(batch_size=8)
                small.step(batch)
            lengths.append((len(batches), step + 1))
    assert lengths == [(5, 5), (4, 4), (3, 3)]
