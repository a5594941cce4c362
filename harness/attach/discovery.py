"""The model and the optimizers of a script, from the objects of its process."""

import gc
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from harness.device.accelerator import computing_device


class ScriptModels(nn.ModuleDict):
    """Several models of one script, under the names of its variables. It is never called."""


class ScriptOptimizers:
    """Several optimizers of one script, as one: their parameter groups and their state."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Any]:
        """The state of all optimizers, by parameter."""
        return {weight: state for optimizer in self.optimizers for weight, state in optimizer.state.items()}


def live_optimizers() -> list[torch.optim.Optimizer]:
    """Return all optimizers of this process that have parameters. Those that only pass on the calls of
    another one, such as Accelerate's, are left out: torch's hooks do not notice their steps."""
    optimizers = [
        one for one in _instances(torch.optim.Optimizer) if getattr(type(one).step, "hooked", False)
    ]
    return [optimizer for optimizer in optimizers if any(group["params"] for group in optimizer.param_groups)]


def owned_parameters(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    """Return the ids of the parameters that the optimizers update."""
    return {id(weight) for one in optimizers for group in one.param_groups for weight in group["params"]}


def shapes_of(optimizer: torch.optim.Optimizer) -> list[torch.Size]:
    """Return the shapes of the parameters that an optimizer updates."""
    return [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]


def owns(module: nn.Module, parameters: set[int]) -> bool:
    """Return whether the module has one of `parameters`, which are ids."""
    return any(id(weight) in parameters for weight in module.parameters())


def owns_all(modules: Iterable[nn.Module], parameters: set[int]) -> bool:
    """Return whether the modules together have all of `parameters`, which are ids, and there are any."""
    own = {id(weight) for module in modules for weight in module.parameters()}
    return bool(parameters) and parameters <= own


def find_models(parameters: set[int], other_than: Collection[type[nn.Module]] = ()) -> list[nn.Module]:
    """Return the outermost modules of this process that have any of `parameters`, which are ids, and are of
    another kind than `other_than`."""
    return _outermost(_instances(nn.Module), parameters, other_than)


def find_new_models(
    parameters: set[int], followed: Collection[nn.Module], kinds: Collection[type[nn.Module]]
) -> list[nn.Module]:
    """Return what `find_models` does, without a search of all objects of the process (some 80 ms), if the
    modules that the garbage collector has seen at most once have, together with `followed`, all of
    `parameters`: then a model was created together with its optimizer, such as a copy for each task. Else
    return none. So do models of others than `kinds`, those so far: one may be the new last layer of an older
    model."""
    young = (thing for generation in (0, 1) for thing in gc.get_objects(generation))
    modules = [thing for thing in young if issubclass(type(thing), nn.Module)]
    models = _outermost(modules, parameters) if owns_all([*followed, *modules], parameters) else []
    return models if all(type(model) in kinds for model in models) else []


def _outermost(
    modules: Iterable[nn.Module], parameters: set[int], other_than: Collection[type[nn.Module]] = ()
) -> list[nn.Module]:
    modules = [module for module in modules if type(module) not in other_than]
    owners = [module for module in modules if owns(module, parameters)]
    inner = {id(child) for module in owners for child in module.modules() if child is not module}
    return [module for module in owners if id(module) not in inner and not isinstance(module, ScriptModels)]


def parts_beside(
    models: Iterable[nn.Module],
    others: Collection[int],
    parameters: set[int],
    outer_kinds: Collection[type[nn.Module]] = (),
) -> list[nn.Module]:
    """Return the outermost modules of `models` that may be called, have any of `parameters`, and have none
    of `others` in them; both are ids. A model with one of `others`, without a `forward`, or of `outer_kinds`,
    has such parts.
    """
    parts: list[nn.Module] = []
    for model in models:
        if id(model) in others or not owns(model, parameters):
            continue
        is_called = type(model).forward is not nn.Module.forward and type(model) not in outer_kinds
        if is_called and not any(id(module) in others for module in model.modules()):
            parts.append(model)
        else:
            parts += parts_beside(model.children(), others, parameters, outer_kinds)
    return parts


def kinds_around(models: Iterable[nn.Module], parts: Collection[int]) -> set[type[nn.Module]]:
    """Return the kinds of the modules, of `models` and in them, that have some of `parts` in them, and are
    none of these, which are ids. Torch's own kinds are left out, which other modules of a script are too."""
    around = (
        module
        for model in models
        if id(model) not in parts
        for module in model.modules()
        if id(module) not in parts and any(id(part) in parts for part in module.modules())
    )
    return {type(module) for module in around if not type(module).__module__.startswith("torch.")}


def wrapped_by(models: Collection[nn.Module]) -> list[nn.Module]:
    """Return the modules that `models` only wrap, and those that these do: each has all of the parameters of
    the module around it, as the network of a diffusion. Torch's own kinds are left out, which other modules
    of a script are too."""
    around = list(models)
    for module in around:  # It grows meanwhile.
        own = {id(weight) for weight in module.parameters()}
        inner = [child for child in module.children() if owns_all([child], own)]
        around += [child for child in inner if not any(child is one for one in around)]
    return [one for one in around[len(models) :] if not type(one).__module__.startswith("torch.")]


def take_alive(models: list[nn.Module]) -> tuple[list[nn.Module], set[type[nn.Module]]]:
    """Empty `models`; return those that the script still has, and the kinds of the others: wrappers that it
    makes for each step."""
    kinds, references = [type(model) for model in models], [ref(model) for model in models]
    models.clear()
    alive = [reference() for reference in references]
    lost = {kind for kind, model in zip(kinds, alive, strict=True) if model is None}
    return [model for model in alive if model is not None], lost


def training_device(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> torch.device:
    """Return the device that a training computes on: the accelerator with the most bytes of weights, of the
    model and of the optimizers; the CPU where no weight is on an accelerator.

    The first weight says little: an embedding or the weights of an optimizer may be on the CPU on purpose.
    """
    weights: dict[int, Tensor] = {id(weight): weight for weight in model.parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            weights |= {id(weight): weight for weight in group["params"]}
    sizes: Counter[torch.device] = Counter()
    for weight in weights.values():
        device = computing_device(weight)
        if device.type not in ("cpu", "meta"):
            # The size of a lazy weight is unknown, but not its device.
            sizes[device] += 1 if is_lazy(weight) else weight.numel() * weight.element_size()
    return max(sizes, key=lambda device: sizes[device], default=torch.device("cpu"))


def wraps_trained(model: nn.Module) -> bool:
    """Return whether DDP in evaluation mode has a module in training mode: Lightning leaves it so after the
    first validation. Its own mode changes nothing."""
    return isinstance(model, DistributedDataParallel) and bool(model.module.training)


def replicas(models: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules among `models`, and in them, that DDP replicates."""
    modules = (module for model in models for module in model.modules())
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def as_one_model(models: Sequence[nn.Module]) -> nn.Module:
    """Return the only model, or all of them under the names of the script's variables."""
    if len(models) == 1:
        return models[0]
    variables = vars(sys.modules["__main__"])
    names: dict[str, nn.Module] = {}
    for number, model in enumerate(models, start=1):
        name = next((key for key, value in variables.items() if value is model), None)
        if name is None or name in names or not name.isidentifier() or hasattr(nn.ModuleDict, name):
            name = f"{type(model).__name__}_{number}"
        names[name] = model
    return ScriptModels(names)


def _instances(kind: type[Any]) -> list[Any]:
    # By `type`, because `isinstance` runs code of lazy proxies.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
