"""The active module: in forward by hooks, in backward by the sequence numbers of autograd's nodes."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

_MOST_CHANGES = 1_000_000


class ModuleTrail:
    """Tracks the active module of `model`, from `start` to `stop`; used on one thread.

    Every autograd node has a sequence number, which increases on its thread. The numbers at which modules
    begin and end identify, in the backward pass, the module whose forward pass created a node. Nodes without
    such a number (they accumulate a parameter's gradient) belong to the parameter's module.

    Attributes:
        changed: called with the path of the new active module, None outside of all.
    """

    def __init__(self, model: nn.Module, changed: Callable[[str | None], None] | None = None) -> None:
        self._paths = {module: path for path, module in model.named_modules()}
        self._owners = {
            id(parameter): path
            for path, module in reversed(list(model.named_modules()))
            for parameter in module.parameters(recurse=False)
        }
        self._changed = changed
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._modules: list[str | None] = []
        self._handles: list[RemovableHandle] = []

    def start(self) -> None:
        """Hook every module's forward pass."""
        self.stop()
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin_pass(self) -> None:
        """Reset before a forward pass, also after an error in a module."""
        self._stack.clear()
        self._numbers.clear()
        self._modules.clear()

    def current(self) -> str | None:
        """Return the path of the active module, forward or backward; None if unknown."""
        if self._stack:
            return self._stack[-1]
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None
        parameter = getattr(node, "variable", None)
        if parameter is not None:
            return self._owners.get(id(parameter))
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._modules[place] if place >= 0 else None

    def is_inside(self) -> bool:
        """Return whether a module's forward pass is under way."""
        return bool(self._stack)

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        path = self._paths.get(module)
        if path is not None:
            self._stack.append(path)
            self._note(path)

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack and self._paths.get(module) == self._stack[-1]:
            self._stack.pop()
            self._note(self._stack[-1] if self._stack else None)

    def _note(self, path: str | None) -> None:
        if len(self._numbers) < _MOST_CHANGES:
            self._numbers.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
            self._modules.append(path)
        if self._changed is not None:
            self._changed(path)
