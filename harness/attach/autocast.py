"""Automatic mixed precision of a script: around the calls of its models, or in its own autocast regions."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from harness.attach.backward_trial import FAILURES, BackwardTrial
from harness.attach.loader_refusals import is_one_of_several
from harness.attach.reasons import reason_of
from harness.attach.training import ScriptTraining
from harness.records.run import AmpMode
from harness.watch.oom.errors import is_out_of_memory

_OWN_REGIONS = "The script has its own autocast: "
_OPEN_REGION = (
    "The autocast region that the script is in stays as it is: the change takes effect in the next one."
)
_DTYPES = {AmpMode.BF16: torch.bfloat16, AmpMode.FP16: torch.float16}
_MODES = {dtype: mode for mode, dtype in _DTYPES.items()}
# Levels of nested outputs: also a limit for those that contain themselves.
_DEPTH = 6
# What containers of a script's own raise that do not allow it.
_UNCHANGEABLE = AttributeError, KeyError, RuntimeError, TypeError, ValueError


class RegionState(NamedTuple):
    """The state that an autocast region enters with."""

    is_enabled: bool
    dtype: torch.dtype


class ScriptAutocast:
    """Puts a mode into effect on the training thread.

    A script that calls its model for training under an enabled `torch.autocast` has regions of its own: they
    follow the mode, and nothing is wrapped. Regions that the script disables stay disabled. In a script
    without such regions the outermost call of a model runs under autocast, and returns float32. A call that
    fails there and succeeds without it switches the mode off.

    Attributes:
        device_type: the kind of device that the regions are for.
        mode: the mode in effect.
        own_dtype: the data type of the script's own regions; None: it has none so far.
        is_calling: whether a model is being called.
        is_training: whether the newest call of a model is for training.
        wrapper: the region around the outermost call of a model; None: there is none.
        has_regions: whether the script has entered a region.
        has_place: whether a mode has a place to take effect: a call of a model with gradients, or a region of
            `stepscope`. It is expected to have one until the first step begins.
        trial: the first step since the mode in effect was switched on; None: it is over.
        has_news: whether the mode has changed by itself, and nobody has taken that into account yet.
        why: why it did, for the beginning of a sentence.
    """

    def __init__(self, device_type: str) -> None:
        """Call it where the training begins: a region around that place is the script's own."""
        self.device_type = device_type
        self.is_calling = False
        self.is_training = False
        self.wrapper: torch.autocast | None = None
        self.own_dtype: torch.dtype | None = None
        self.trial: BackwardTrial | None = None
        self.has_regions = self.has_news = False
        self.has_place = True
        self.why = _OWN_REGIONS
        self.mode = AmpMode.OFF
        if torch.is_autocast_enabled(device_type):
            self._notice(torch.get_autocast_dtype(device_type))

    @property
    def own_mode(self) -> AmpMode:
        """The mode of the script's own regions, OFF without them."""
        return AmpMode.OFF if self.own_dtype is None else _MODES.get(self.own_dtype, AmpMode.OFF)

    @property
    def is_supported(self) -> bool:
        """Return whether regions of the script, if any, have a data type that a mode stands for."""
        return self.own_dtype is None or self.own_dtype in _MODES

    @property
    def is_plain(self) -> bool:
        """Return whether a call of the model for training needs no care: nothing is wrapped, and no region of
        the script is new."""
        if self.own_dtype is None and torch.is_autocast_enabled(self.device_type):
            return False
        is_known = self.own_dtype is not None or not self.has_regions
        return self.is_training and is_known and self.wrapper is None and not self.has_news

    def apply(self, mode: AmpMode) -> str | None:
        """Put `mode` into effect from the next region or call of a model on; return a sentence about when, if
        the script is in a region, such as one around its whole loop."""
        dtype, is_late = _DTYPES.get(mode), mode is not self.mode and self.own_dtype is not None
        wraps = dtype is not None and self.own_dtype is None
        if mode is not self.mode:
            self.trial = BackwardTrial() if wraps else None
        self.mode = mode
        self.wrapper = torch.autocast(self.device_type, dtype=dtype) if wraps else None
        return _OPEN_REGION if is_late and _is_in_region() else None

    def forward_began(self, *, is_training: bool) -> None:
        """A model is about to be called, for training or for evaluation. Not necessary where that is as for
        the call before, and the script has entered no region."""
        self.is_training = is_training
        may_be_new = is_training and self.own_dtype is None and not self.is_calling and self.wrapper is None
        if may_be_new and torch.is_autocast_enabled(self.device_type):
            self._notice(torch.get_autocast_dtype(self.device_type))

    def run_forward(self, call: Callable[[], Any]) -> Any:
        """Return the output of a model's `call`. A call within another one is part of it."""
        if self.is_calling:
            return call()
        self.is_calling = True
        try:
            if self.wrapper is None:
                return call()
            try:
                with self.wrapper:
                    output = call()
            except FAILURES as error:
                # Of several processes, one that repeats a call alone would wait for the others' collectives.
                if is_out_of_memory(error) or is_one_of_several():
                    raise
                reason = reason_of(error)
            else:
                return in_float32(output)
            output = call()  # Raises what it raises without us.
            self._fall_back(
                f"The model failed under mixed precision, and was called again without ({reason}): "
            )
            return output
        finally:
            self.is_calling = False

    def run_backward(self, compute: Callable[[], None], training: ScriptTraining, step: int) -> None:
        """Compute gradients by `compute` in `step`. In the first step under a mode it may fail: then the
        step goes on with gradients of zero, and the mode is switched off."""
        if self.trial is None or not self.trial.covers(step):
            self.trial = None if self.trial is None or self.trial.is_over(step) else self.trial
            compute()
        elif (reason := self.trial.run(compute, training, step)) is not None:
            self._fall_back(
                f"The backward pass failed under mixed precision, and gave no gradients ({reason}): "
            )

    def step_ended(self) -> None:
        """A step has ended: a mode that was requested before the first one, and has no place, is switched
        off."""
        if self.wrapper is not None and not self.has_place:
            self._fall_back("No call of a model that is trained was seen in the first step: ")

    def _fall_back(self, why: str) -> None:
        # The trial goes on to the end of the step: it may compute more gradients of the same outputs.
        self.mode, self.wrapper, self.has_news, self.why = AmpMode.OFF, None, True, why

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for a region that is about to be entered; None: it keeps the script's."""
        if not region._enabled or region.device != self.device_type or region is self.wrapper:
            return None
        self.has_regions = True
        if self.own_dtype is None:
            if self.is_calling and self.is_training and self.wrapper is None:
                self._notice(region.fast_dtype)
            return None
        if self.mode is self.own_mode:
            return None
        dtype = _DTYPES.get(self.mode)
        return RegionState(dtype is not None, region.fast_dtype if dtype is None else dtype)

    def _notice(self, dtype: torch.dtype) -> None:
        self.own_dtype, self.has_news, self.why = dtype, True, _OWN_REGIONS
        self.mode = self.own_mode


def _is_in_region() -> bool:
    """Return whether this thread is in an autocast region, enabled or not."""
    depth = torch.autocast_increment_nesting()  # Only this returns it.
    torch.autocast_decrement_nesting()
    return depth > 1


class RegionEvents(Protocol):
    """The receiver of entries into autocast regions."""

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        ...

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for a region that is about to be entered; None: its own."""
        ...


def following_regions(events: RegionEvents, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that stands in for `torch.autocast.__enter__`."""

    @wraps(original)
    def enter(region: torch.autocast) -> Any:
        state = events.region_entered(region) if events.follows() else None
        if state is None:
            return original(region)
        own = region._enabled, region.fast_dtype
        region._enabled, region.fast_dtype = state
        try:
            return original(region)
        finally:
            region._enabled, region.fast_dtype = own

    return enter


def in_float32(output: Any, depth: int = _DEPTH) -> Any:
    """Return `output` with its half-precision tensors in float32, as the script expects them: those of lists,
    tuples, mappings and data classes, up to `depth` levels deep, and the attributes of other objects. What
    cannot be changed is left."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype in _MODES else output
    if not depth or callable(output) or isinstance(output, ModuleType):
        return output
    if isinstance(output, list | tuple):
        items = [in_float32(item, depth - 1) for item in output]
        return output if all(map(is_, items, output)) else _with_items(output, items)
    attributes = getattr(output, "__dict__", {})
    if all(hasattr(type(output), name) for name in ("keys", "__getitem__", "__setitem__")):
        _change_items(output, depth, object)  # Such as transformers' ModelOutput.
    elif is_dataclass(output):
        _change_items(attributes, depth, object)
        if hasattr(type(output), "__slots__"):
            _change_slots(output, depth)
    else:  # Such as a distribution, but not what it refers to, such as the layers of a cache.
        _change_items(attributes, depth, Tensor, Distribution, type(output))
    return output


def _with_items(sequence: Any, items: list[Any]) -> Any:
    """Return a list or tuple of the type of `sequence` with these items, or itself if none can be made."""
    with suppress(*_UNCHANGEABLE):
        return type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items)
    return sequence


def _change_slots(output: Any, depth: int) -> None:
    """Change the tensors in the fields of a data class that has no dictionary of attributes."""
    for field in fields(output):
        value = getattr(output, field.name, None)
        changed = in_float32(value, depth - 1)
        if changed is not value:
            with suppress(*_UNCHANGEABLE):
                object.__setattr__(output, field.name, changed)  # Also of a frozen one.


def _change_items(items: Any, depth: int, *kinds: type) -> None:
    """Change the tensors in items of these kinds."""
    pairs: list[tuple[Any, Any]] = []
    with suppress(*_UNCHANGEABLE):
        pairs = [(key, items[key]) for key in items.keys()]  # noqa: SIM118  # it may be no mapping
    for key, value in pairs:
        changed = in_float32(value, depth - 1) if isinstance(value, kinds) else value
        if changed is not value:
            with suppress(*_UNCHANGEABLE):
                items[key] = changed
