"""The arguments of `stepscope.watch`, and the script that calls it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.attach.launch import Script
from stepscope.notebook import in_notebook

if TYPE_CHECKING:
    import torch
    from torch import nn


def check_name(name: object) -> None:
    """Raises ValueError for a name that is no text."""
    if name is not None and not isinstance(name, str):
        raise ValueError(f"The name of a run cannot be {name!r}; give text, or none.")


def checked_home(home: Any) -> str | None:
    """Return the path of a home as text; None: none is given. Raises ValueError for what is no path."""
    try:
        return None if home is None else os.fsdecode(home)
    except TypeError:
        raise ValueError(
            f"The home of runs cannot be {home!r}; give the path of a folder, or none."
        ) from None


def modules_of(model: object) -> "list[nn.Module]":
    """Return a model, or several, as a list. Raises ValueError for anything else, and where nothing in
    them is to be trained."""
    from torch import nn

    models = []
    for one in model if isinstance(model, list | tuple) else [model]:
        if not isinstance(one, nn.Module):
            raise ValueError(f"The model cannot be {type(one).__name__}; give a torch.nn.Module, or several.")
        models.append(one)
    if not any(weight.requires_grad for one in models for weight in one.parameters()):
        raise ValueError("The model has no parameters to train; build it before stepscope.watch.")
    return models


def optimizers_of(optimizer: object) -> "list[torch.optim.Optimizer]":
    """Return an optimizer, or several, as a list of those of torch. Raises ValueError for anything else."""
    import torch

    optimizers = []
    for one in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
        # Such as Accelerate's and Lightning's, around one of torch.
        inner = getattr(one, "optimizer", None)
        bare = inner if isinstance(inner, torch.optim.Optimizer) else one
        if not isinstance(bare, torch.optim.Optimizer):
            raise ValueError(
                f"The optimizer cannot be {type(one).__name__}; give a torch.optim.Optimizer, or several."
            )
        optimizers.append(bare)
    if not optimizers:
        raise ValueError("The list of optimizers is empty; give a torch.optim.Optimizer.")
    return optimizers


def this_script() -> Script:
    """Return the script of this process, with its arguments."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return Script(spec.name.removesuffix(".__main__"), tuple(sys.argv[1:]), is_module=True)
    if in_notebook() or file is None:
        return Script("notebook" if in_notebook() else "python", (), is_module=False)
    path = Path(file)
    target = path.name if path.parent == Path.cwd() else str(path)
    return Script(target, tuple(sys.argv[1:]), is_module=False)
