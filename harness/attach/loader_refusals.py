"""The reasons that a setting of a script's loader cannot change."""

import ast
import multiprocessing
import sys
from functools import cache
from pathlib import Path
from typing import Any

from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler

from harness.attach.loader_values import LoaderValues, is_iterable
from harness.settings.spec import SPECS


def loader_refusal(
    name: str, loader: DataLoader[Any], values: LoaderValues, *, changes_together: bool
) -> str | None:
    """Return the reason that the setting `name` of `loader`, which has `values`, cannot change; None: it can.
    `changes_together` is whether all ranks of the run change their loaders before the same step."""
    spec, value = SPECS[name], getattr(values, name)
    if name == "batch_size" and (reason := _size_refusal(loader, changes_together)) is not None:
        return reason
    if name == "num_workers" and (reason := _workers_refusal(loader)) is not None:
        return reason
    if value is None:
        kind = type(loader.batch_sampler).__name__
        return f"The loader's batches are made by a sampler of the script's own, {kind}; change it there."
    if not is_allowed(name, value):
        return f"{spec.label} is {value:,} in the script; it can only change where it is {spec.bounds}."
    return None


def _size_refusal(loader: DataLoader[Any], changes_together: bool) -> str | None:
    if loader.batch_sampler is None:
        return "The loader has batch_size=None: the script's dataset decides on the size of its batches."
    if is_one_of_several() and not (changes_together and type(loader.sampler) is DistributedSampler):
        return "The script trains in several processes, and each of them needs the same number of batches."
    return None


def _workers_refusal(loader: DataLoader[Any]) -> str | None:
    if is_iterable(loader):
        return "The loader reads an IterableDataset, which divides its samples among its workers itself."
    if loader.num_workers:
        return None
    # Without fixing the method: the script may still set one.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    # That of a package or a folder is not run again.
    if method == "fork" or main is None or Path(main).stem == "__main__" or _guards_main(main):
        return None
    return (
        f"Workers begin by {method!r} here, which would run {Path(main).name} again in each of them: put "
        'what it does under `if __name__ == "__main__":`.'
    )


@cache
def _guards_main(path: str) -> bool:
    """Return whether the main module leaves out a part of it where another process imports it."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    compared = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    parts = (part for node in compared for part in (node.left, *node.comparators))
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in parts)


def is_one_of_several() -> bool:
    """Return whether this process is one of a distributed training."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_allowed(name: str, value: Any) -> bool:
    """Return whether the setting `name` may have the value of a script's loader."""
    spec = SPECS[name]
    if value is None:
        return False
    return (spec.minimum is None or value >= spec.minimum) and (spec.maximum is None or value <= spec.maximum)
