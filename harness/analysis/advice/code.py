"""Lines of code for changes that a run cannot make itself, because its script does not have the setting."""

from collections.abc import Mapping
from typing import Any

_LOADER = ("batch_size", "num_workers", "pin_memory", "prefetch_factor")
_LINES = {
    "amp": "with torch.autocast(device.type, dtype=torch.{dtype}):  # around the forward pass and the loss",
    "non_blocking": "batch = batch.to(device, non_blocking=True)",
    "optimizer_impl": "torch.optim.AdamW(model.parameters(), {value}=True)",
    "compile": "model = torch.compile(model)",
    "matmul_precision": 'torch.set_float32_matmul_precision("{value}")',
    "channels_last": "model = model.to(memory_format=torch.channels_last)",
    "device_metrics": "losses.append(loss.detach())  # read with .item() every 100 steps",
    "activation_checkpointing": "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    "grad_accumulation": "if (step + 1) % {value} == 0: optimizer.step()  # and divide the loss by {value}",
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def code_for(values: Mapping[str, Any]) -> str:
    """Return the lines that make these changes of settings in a script; empty where there is no such line."""
    of_loader = {name: value for name, value in values.items() if name in _LOADER}
    arguments = "".join(f", {name}={value}" for name, value in of_loader.items())
    lines = [f"DataLoader(dataset{arguments})"] if arguments else []
    lines += [
        _LINES[name].format(value=value, dtype=_DTYPES.get(str(value), value))
        for name, value in values.items()
        if name in _LINES
    ]
    return "\n".join(lines)
