"""The best settings as plain PyTorch for a loop of one's own: only the lines that the settings need."""

from collections.abc import Iterator

from harness.records.run import AmpMode, DeviceKind
from harness.settings import Settings
from harness.settings.declaration import MatmulPrecision, Optimizer, OptimizerImpl

_OPTIMIZERS = {Optimizer.SGD: "SGD", Optimizer.ADAM: "Adam", Optimizer.ADAMW: "AdamW"}
_TYPES = {AmpMode.BF16: "torch.bfloat16", AmpMode.FP16: "torch.float16"}


def snippet(settings: Settings, device: DeviceKind) -> str:
    """Return the code. It takes `model`, `dataset` and `loss_function` from the code around it; with
    activation checkpointing also `model.blocks`, the repeated blocks of the model."""
    lines = [*_setup(settings, device), "", *_loader(settings), "", *_loop(settings)]
    return "\n".join(lines) + "\n"


def _setup(settings: Settings, device: DeviceKind) -> Iterator[str]:
    if settings.activation_checkpointing:
        yield "from functools import partial"
        yield ""
    yield "import torch"
    yield "from torch.utils.data import DataLoader"
    if settings.activation_checkpointing:
        yield "from torch.utils.checkpoint import checkpoint"
    yield ""
    yield f'device = torch.device("{device.value}")'
    if settings.matmul_precision is not MatmulPrecision.HIGHEST:
        yield f'torch.set_float32_matmul_precision("{settings.matmul_precision.value}")'
    if settings.cudnn_benchmark and device is DeviceKind.CUDA:
        yield "torch.backends.cudnn.benchmark = True"
    if settings.flush_denormal and device is DeviceKind.CPU:
        yield "torch.set_flush_denormal(True)"
    layout = ", memory_format=torch.channels_last" if settings.channels_last else ""
    yield f"model = model.to(device{layout})"
    if settings.activation_checkpointing:
        yield "for block in model.blocks:"
        yield "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    if settings.compile:
        yield "model = torch.compile(model)"
    yield f"optimizer = torch.optim.{_OPTIMIZERS[settings.optimizer]}({_optimizer_arguments(settings)})"
    if settings.amp is AmpMode.FP16:
        yield "scaler = torch.amp.GradScaler(device.type)"


def _optimizer_arguments(settings: Settings) -> str:
    extra = {
        OptimizerImpl.AUTO: "",
        OptimizerImpl.LOOP: ", foreach=False, fused=False",
        OptimizerImpl.FOREACH: ", foreach=True",
        OptimizerImpl.FUSED: ", fused=True",
    }
    return f"model.parameters(), lr={settings.learning_rate}{extra[settings.optimizer_impl]}"


def _loader(settings: Settings) -> Iterator[str]:
    yield "loader = DataLoader("
    yield "    dataset,"
    yield f"    batch_size={settings.batch_size},"
    yield "    shuffle=True,"
    if settings.num_workers:
        yield f"    num_workers={settings.num_workers},"
        yield f"    prefetch_factor={settings.prefetch_factor},"
        yield "    persistent_workers=True,"
    if settings.pin_memory:
        yield "    pin_memory=True,"
    yield ")"


def _loop(settings: Settings) -> Iterator[str]:
    accumulation = settings.grad_accumulation
    wait = ", non_blocking=True" if settings.non_blocking else ""
    layout = ", memory_format=torch.channels_last" if settings.channels_last else ""
    yield (
        "for number, (inputs, targets) in enumerate(loader, 1):"
        if accumulation > 1
        else ("for inputs, targets in loader:")
    )
    yield f"    inputs = inputs.to(device{wait}{layout})"
    yield f"    targets = targets.to(device{wait})"
    yield from ("    " + line for line in _forward(settings))
    loss = f"(loss / {accumulation})" if accumulation > 1 else "loss"
    yield f"    scaler.scale({loss}).backward()" if settings.amp is AmpMode.FP16 else f"    {loss}.backward()"
    indent = "    "
    if accumulation > 1:
        yield f"    if number % {accumulation} == 0:"
        indent = "        "
    if settings.amp is AmpMode.FP16:
        yield f"{indent}scaler.step(optimizer)"
        yield f"{indent}scaler.update()"
    else:
        yield f"{indent}optimizer.step()"
    yield f"{indent}optimizer.zero_grad({'' if settings.set_to_none else 'set_to_none=False'})"


def _forward(settings: Settings) -> Iterator[str]:
    line = "loss = loss_function(model(inputs), targets)"
    contexts = []
    if settings.amp is not AmpMode.OFF:
        contexts.append(f"torch.autocast(device.type, dtype={_TYPES[settings.amp]})")
    if settings.offload_saved_tensors:
        contexts.append("torch.autograd.graph.save_on_cpu(pin_memory=True)")
    if not contexts:
        yield line
        return
    yield f"with {', '.join(contexts)}:"
    yield f"    {line}"
