"""The settings that a script's run does not have: the reason, and the line of code with the same effect; and
the reason for which another one failed.

Complete: a setting is listed here unless a script can have it (`harness.attach.switches`, and for its loader
`harness.attach.loader_refusals`).
"""

from collections.abc import Mapping

from harness.errors import text_of

_WORKLOAD = "The script makes its model and its data; change them in the script."
_SIZE = "The script decides on the size of its samples; change it in its dataset."

REASONS: Mapping[str, str] = {
    **dict.fromkeys(("model", "preset", "data", "data_path", "data_samples"), _WORKLOAD),
    **dict.fromkeys(("image_size", "sequence_length"), _SIZE),
    "device": "The script places its model; change the device in its `.to(device)`.",
    "parallel": "Wrap the model in `DistributedDataParallel`, or call `fully_shard(model)`, in the script.",
    "data_parallel": "Wrap the model in `torch.nn.DataParallel` in the script.",
    "grad_accumulation": "The script decides after how many batches it calls `optimizer.step()`.",
    "non_blocking": "The script copies its batches; write `batch.to(device, non_blocking=True)`.",
    "slow_loader_ms": "It delays the loader of a catalog run, to show what that looks like.",
    "channels_last": "Write `model.to(memory_format=torch.channels_last)` in the script.",
    "compile": "Write `model = torch.compile(model)` in the script.",
    "flush_denormal": "Write `torch.set_flush_denormal(True)` in the script.",
    "device_metrics": "The script decides where it calls `.item()`.",
    "nvtx": "Write `with torch.cuda.nvtx.range(name):` in the script.",
    "activation_checkpointing": "Call the model's blocks by `torch.utils.checkpoint.checkpoint`.",
    "offload_saved_tensors": (
        "Write `with torch.autograd.graph.save_on_cpu():` around the forward pass in the script."
    ),
    "set_to_none": "Write `optimizer.zero_grad(set_to_none=…)` in the script.",
    "oom_policy": "A step of a script cannot be repeated; catch torch.OutOfMemoryError in the script.",
    "oom_retries": "A step of a script cannot be repeated; catch torch.OutOfMemoryError in the script.",
    "optimizer": "The script makes its optimizer; change it in the script.",
    "optimizer_impl": "Pass `foreach=True` or `fused=True` to the optimizer in the script.",
    "learning_rate": "The script sets its learning rates; multiply them by learning_rate_factor.",
    "seed": "Write `torch.manual_seed(…)` in the script.",
    "inject": "Faults are injected into runs of the catalog only.",
}

NO_OPTIMIZER = "No optimizer of torch.optim updates the parameters; change the rate in the script."
NO_RATE = (
    "The script's optimizer has no learning rate, as a number or a tensor in its parameter groups, that each "
    "of its steps reads; change the rate in the script."
)
OTHER_RANKS = (
    "It trains in several processes, and this run has one of them: with other learning rates its weights "
    "would differ from those of the other processes. Start all of them under Stepscope, as by `stepscope run "
    "--nproc 2 train.py`."
)
SETS_RATE = (
    "{kind} sets its learning rate in its step, to a value that does not follow from the multiplied one: "
    "learning_rate_factor={factor:g} has no effect on a step that sets it before it uses it. Change the rate "
    "in the script."
)
MIXED_PRECISION_APIS = (
    "The script sets float32 precision by both of torch's interfaces (`fp32_precision` and "
    "`set_float32_matmul_precision`), which torch refuses to read; use one of them."
)
OWN_AUTOCAST = (
    "The script's own torch.autocast has a data type that cannot be switched on this device; "
    "change it in the script."
)
NO_SCALER = "amp cannot be 'fp16' without a GradScaler in the script; try 'bf16'."
NO_FLOAT32 = (
    "amp cannot be {mode!r} in this script: autocast computes in fewer bits what is in float32, and all "
    "weights are in {dtype}."
)
NO_PLACE = (
    "amp cannot be {mode!r} in this script: no call of a model that is trained was seen so far, as where the "
    "parameters are in no module, or a function that torch.compile compiled calls the model; enter "
    "torch.autocast in the script, or call stepscope's run.autocast()."
)
NO_LSTM = (
    "amp cannot be 'bf16' in this script: it has an LSTM, and this processor runs none in bfloat16 "
    "(torch needs AVX-512 for it)."
)
NO_BF16_REPLICAS = (
    "amp cannot be 'bf16' in this script: torch.nn.DataParallel runs its replicas on threads of its own, in "
    "float16 whatever the data type of autocast; use DistributedDataParallel, or enter torch.autocast with "
    "bfloat16 in the model's `forward`."
)
ALL_DROPPED = (
    "batch_size cannot be {size:,}: the loader drops incomplete batches (drop_last=True), and an epoch has "
    "{samples:,} samples."
)
ONE_LEFT = (
    "batch_size cannot be {size:,}: the last batch of this epoch or of the next ones would have 1 sample, "
    "with which the model's BatchNorm1d layers may fail; choose another size."
)


def reason_of(error: Exception) -> str:
    """Return the first line of an error, or its kind."""
    return text_of(error).strip().partition("\n")[0] or type(error).__name__
