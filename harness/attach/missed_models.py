"""Models that are followed, but not called: the script calls others, or modules within them."""

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

# Searches for the models in place of those that exist no longer: each takes some 50 ms.
_MOST_REPLACEMENTS = 3
# Searches until a call within a model was seen: the next steps may be of other models.
_MOST_WAITS = 20
# `_current_graph_task_id` outside of any backward pass.
_NO_BACKWARD = -1


class MissedModels:
    """Decides whether the models are searched for again, after a step in which none of them was called.

    Attributes:
        has_followed: whether a search or a call has found any. Where an optimizer has tensors of no module,
            there is none to search for again.
        has_lost: whether that is because the models that were followed exist no longer.
        uncalled: the models that were found by a search, and not by a call.
    """

    def __init__(self) -> None:
        self.has_followed = self.has_lost = False
        self.uncalled: WeakSet[nn.Module] = WeakSet()
        self._replacements = self._waits = 0
        self._inner: _InnerCalls | None = None

    @property
    def is_noting(self) -> bool:
        """Return whether the calls of modules within `uncalled` are noted."""
        return self._inner is not None

    def step_missed(self, models: Iterable[nn.Module], *, is_compiled: bool) -> bool:
        """Gradients were computed in a step, and none of `models` was called. Return whether they are to be
        searched for. From now on the calls of modules within `uncalled` ones are noted, unless `is_compiled`:
        the hooks for that make torch.compile compile again."""
        if self.uncalled and not is_compiled:
            self._inner = _InnerCalls(self.uncalled)
            self._waits = 0
            return True
        has_any = any(True for _ in models)
        if has_any or not self.has_followed or self._replacements == _MOST_REPLACEMENTS:
            return False
        self._replacements += 1
        self.has_lost = True
        return True

    def postpone_search(self) -> bool:
        """Count a search; return whether it is to come later, as no call was noted yet."""
        self._waits += 1
        return self._inner is not None and not self._inner.called and self._waits <= _MOST_WAITS

    def pop_called(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Stop noting calls. Return the modules that were called, and the models that have some of them."""
        if self._inner is None:
            return [], []
        called, self._inner = self._inner.close(), None
        models = [model for model in self.uncalled if any(one in called for one in model.modules())]
        # The turn of the others may come later.
        self.uncalled = WeakSet(set(self.uncalled) - set(models)) if called else WeakSet()
        return called, models

    def close(self) -> None:
        """Stop noting calls. Idempotent."""
        if self._inner is not None:
            self._inner.close()
            self._inner = None


class _InnerCalls:
    """Notes the outermost modules within `models` that are called, by torch's hooks of all modules."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._modules = {id(module) for model in models for module in model.modules()}
        self._depth = 0
        self.called: list[nn.Module] = []
        self._handles = (
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        )

    def close(self) -> list[nn.Module]:
        """Remove the hooks, and return the modules that were called."""
        for handle in self._handles:
            handle.remove()
        called, self.called = self.called, []
        return called

    def _begin(self, module: nn.Module, _inputs: Any) -> None:
        if id(module) in self._modules and torch._C._current_graph_task_id() == _NO_BACKWARD:
            if not self._depth and not any(module is one for one in self.called):
                self.called.append(module)
            self._depth += 1

    def _end(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._depth and id(module) in self._modules:
            self._depth -= 1
