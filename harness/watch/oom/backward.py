"""Progress of a failed backward pass, derived from the gradients that existed at the failure.

Autograd runs in C++ without Python frames. But it computes gradients from the end of the model to its
beginning, and as gradients are None after each step, exactly those computed before the failure exist.
"""

from typing import NamedTuple

from torch import nn

from harness.watch.training import Training


class BackwardProgress(NamedTuple):
    """The module with the next gradient to compute."""

    # Its path; empty: the model itself.
    module: str
    kind: str
    # The evidence, in words.
    note: str


def reached(training: Training) -> BackwardProgress | None:
    """Return the progress of the backward pass; None where gradients do not show it.

    They do not with `set_to_none` off, in any but the first micro-batch of a step (all of them exist then),
    and if modules run in another order than the model lists them, which shows as a missing gradient behind
    existing ones.
    """
    due = [
        (path, module, _has_gradients(module, training)) for path, module in training.model.named_modules()
    ]
    modules = [(path, module, has) for path, module, has in due if has is not None]
    missing = [at for at, (_, _, has) in enumerate(modules) if not has]
    if not missing or missing != list(range(len(missing))):
        return None
    path, module, _ = modules[missing[-1]]
    after = len(modules) - len(missing)
    there = (
        f"those of the {after} behind it were there" if after > 1 else "that of the one behind it was there"
    )
    note = (
        "The backward pass runs in C++, without Python frames: the line is the one that started it. The "
        "module is the last, as the model lists them, that had no gradient yet"
        f"{f'; {there}' if after else ''}. It failed there, or in what lies between it and the next."
    )
    return BackwardProgress(path, type(module).__name__, note)


def _has_gradients(module: nn.Module, training: Training) -> bool | None:
    """Return whether all parameters of the module itself have gradients; None if it needs none. Once there is
    optimizer state, parameters without it never had a gradient, and need none."""
    state = training.optimizer.state
    awaited = [
        parameter
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad and (not state or parameter in state)
    ]
    return all(parameter.grad is not None for parameter in awaited) if awaited else None
