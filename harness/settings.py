"""The settings of a run, one declaration each: type, bounds, default, help, devices, when it takes effect.

A setting is a field of `Settings`; its `Setting` annotation says what pydantic cannot. `harness.config`
derives flags, forms, docs and messages from these declarations.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from harness.records import AmpMode, DeviceKind
from harness.setting import Effect, Group, MatmulPrecision, OomPolicy, Optimizer, OptimizerImpl, Setting

_CUDA = frozenset({DeviceKind.CUDA})
_COPIED_TO = frozenset({DeviceKind.CUDA, DeviceKind.XPU})
"""Devices with a memory of their own, to which batches are copied. Apple's GPUs share the CPU's, and a copy
that does not block corrupts data there (pytorch/pytorch issues 139550 and 189690)."""


class Settings(BaseModel):
    """Everything a run can be told. Frozen; `harness.config.change` makes a changed one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    model: Annotated[
        str, Setting("Model", "What to train; see `stepscope models`.", Group.WORKLOAD, Effect.NEW_RUN)
    ] = "cnn"
    preset: Annotated[
        str,
        Setting("Size", "The model's size, from 'laptop' to 'h200'.", Group.WORKLOAD, Effect.NEW_RUN),
    ] = "laptop"
    data: Annotated[
        str,
        Setting(
            "Data",
            "Where samples come from. 'synthetic' makes random tensors on the device, which takes the "
            "loader out of the picture.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
        ),
    ] = "digits"
    data_path: Annotated[
        str | None,
        Setting(
            "Folder",
            "For the data sources 'images' and 'text': a folder of your own files.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
        ),
    ] = None
    device: Annotated[
        str,
        Setting(
            "Device",
            "'auto' (the first of CUDA, XPU and MPS that is there, else the CPU), 'cpu', 'cuda:0', 'xpu:0', "
            "'mps', or an NVIDIA GPU's UUID. CUDA's indices count after CUDA_VISIBLE_DEVICES.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
        ),
    ] = "auto"
    image_size: Annotated[
        int,
        Field(ge=8, le=1024),
        Setting("Image size", "Height and width of an image.", Group.WORKLOAD, Effect.NEW_RUN, unit="px"),
    ] = 32
    sequence_length: Annotated[
        int,
        Field(ge=2, le=65536),
        Setting(
            "Sequence length", "Tokens in one text sample.", Group.WORKLOAD, Effect.NEW_RUN, unit="tokens"
        ),
    ] = 128
    data_samples: Annotated[
        int,
        Field(ge=1, le=100_000_000),
        Setting(
            "Samples",
            "How many samples 'shapes' and 'synthetic' generate; the other sources bring their own number.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            advanced=True,
        ),
    ] = 4096

    batch_size: Annotated[
        int,
        Field(ge=1, le=65536),
        Setting(
            "Batch size",
            "Samples in one forward pass. More fills the device better, and costs memory for activations.",
            Group.DATA,
            Effect.LOADER,
            short="batch",
        ),
    ] = 32
    grad_accumulation: Annotated[
        int,
        Field(ge=1, le=1024),
        Setting(
            "Gradient accumulation",
            "Forward and backward passes in one optimizer step: the effective batch grows, memory does not.",
            Group.DATA,
            Effect.NEXT_STEP,
            short="accumulation",
        ),
    ] = 1
    pin_memory: Annotated[
        bool,
        Setting(
            "Pinned memory",
            "The loader puts batches into page-locked memory, from which a copy to the GPU is faster and "
            "can overlap with computing.",
            Group.DATA,
            Effect.LOADER,
            devices=_COPIED_TO,
            short="pinned",
        ),
    ] = False
    non_blocking: Annotated[
        bool,
        Setting(
            "Non-blocking copies",
            "The CPU does not wait for the copy to the GPU; it overlaps only from pinned memory.",
            Group.DATA,
            Effect.NEXT_STEP,
            devices=_COPIED_TO,
            short="non-blocking",
        ),
    ] = False
    num_workers: Annotated[
        int,
        Field(ge=0, le=64),
        Setting(
            "Loader workers",
            "Processes that prepare batches beside the training; 0 prepares them in the training thread.",
            Group.DATA,
            Effect.LOADER,
            short="workers",
        ),
    ] = 0
    prefetch_factor: Annotated[
        int,
        Field(ge=1, le=64),
        Setting(
            "Prefetch",
            "Batches each loader worker prepares ahead; unused without workers.",
            Group.DATA,
            Effect.LOADER,
            unit="batches",
            advanced=True,
            short="prefetch",
        ),
    ] = 2
    slow_loader_ms: Annotated[
        float,
        Field(ge=0, le=60_000),
        Setting(
            "Slow loader",
            "An artificial delay for every batch, to learn what a starved device looks like.",
            Group.DATA,
            Effect.LOADER,
            unit="ms",
            advanced=True,
            short="slow loader",
        ),
    ] = 0.0

    amp: Annotated[
        AmpMode,
        Setting(
            "Mixed precision (AMP)",
            "Runs what is safe in 16 bits: bf16 needs no loss scaling, fp16 uses GradScaler. Saves "
            "activation memory and uses tensor cores.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            short="AMP",
        ),
    ] = AmpMode.OFF
    matmul_precision: Annotated[
        MatmulPrecision,
        Setting(
            "float32 precision",
            "'highest' is plain float32, in cuDNN's convolutions too; 'high' allows TF32 on Ampere and "
            "newer; 'medium' allows bfloat16.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            advanced=True,
            short="matmul",
        ),
    ] = MatmulPrecision.HIGHEST
    cudnn_benchmark: Annotated[
        bool,
        Setting(
            "cuDNN benchmark",
            "Tries convolution algorithms for each new input shape and keeps the fastest.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            devices=_CUDA,
            short="cuDNN bench",
        ),
    ] = False
    channels_last: Annotated[
        bool,
        Setting(
            "channels_last",
            "Stores images as NHWC, which tensor cores and oneDNN prefer for convolutions.",
            Group.PRECISION,
            Effect.NEXT_STEP,
        ),
    ] = False
    compile: Annotated[
        bool,
        Setting(
            "torch.compile",
            "Compiles the model; the first step after the change takes long.",
            Group.PRECISION,
            Effect.MODEL,
            short="compile",
        ),
    ] = False
    device_metrics: Annotated[
        bool,
        Setting(
            "Metrics on the device",
            "The loss stays on the device and is read some steps later. Off is the naïve `.item()` every "
            "step, to see what it costs.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            short="device metrics",
        ),
    ] = True
    nvtx: Annotated[
        bool,
        Setting(
            "NVTX ranges",
            "Names the phases for Nsight.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            devices=_CUDA,
            advanced=True,
            short="NVTX",
        ),
    ] = False

    empty_cache_every: Annotated[
        int,
        Field(ge=0, le=1_000_000),
        Setting(
            "empty_cache every",
            "Gives cached memory back every N steps (0: never). On the CPU it trims the heap.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            unit="steps",
        ),
    ] = 0
    activation_checkpointing: Annotated[
        bool,
        Setting(
            "Activation checkpointing",
            "Keeps only block inputs and computes the rest again in backward: less memory, more time.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            short="checkpointing",
        ),
    ] = False
    offload_saved_tensors: Annotated[
        bool,
        Setting(
            "Offload saved tensors",
            "Keeps what backward needs in CPU memory and copies it back when needed.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            devices=_COPIED_TO,
            short="offload",
        ),
    ] = False
    set_to_none: Annotated[
        bool,
        Setting(
            "zero_grad(set_to_none)",
            "Frees gradients between steps instead of filling them with zeros.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            advanced=True,
            short="set_to_none",
        ),
    ] = True
    memory_cap_gib: Annotated[
        float | None,
        Field(gt=0, le=100_000),
        Setting(
            "Memory cap",
            "The most the run may use; reaching it is a real out-of-memory error. On the CPU it limits what "
            "the process may allocate for the model and its data.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            unit="GiB",
            short="cap",
        ),
    ] = None
    oom_policy: Annotated[
        OomPolicy,
        Setting(
            "When memory runs out",
            "'rollback' undoes the change of settings that came right before it, 'halve' halves the batch "
            "and doubles the accumulation, 'skip' leaves the batch out; 'stop', and whatever does not help, "
            "ends the run.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            short="on OOM",
        ),
    ] = OomPolicy.ROLL_BACK
    oom_retries: Annotated[
        int,
        Field(ge=1, le=100),
        Setting(
            "Recoveries",
            "How often a run may recover from running out of memory before it ends all the same.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            advanced=True,
            short="recoveries",
        ),
    ] = 3
    memory_history: Annotated[
        bool,
        Setting(
            "Allocation history",
            "Follows every allocation with its stack, so that an out-of-memory report names the lines that "
            "hold the memory. Costs time in every step.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            advanced=True,
            short="history",
        ),
    ] = False
    hunt_leaks: Annotated[
        bool,
        Setting(
            "Hunt leaks",
            "When live tensors leak, follows the allocations of some steps once, to name the lines that keep "
            "them.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            advanced=True,
            short="hunt leaks",
        ),
    ] = True

    optimizer: Annotated[
        Optimizer,
        Setting(
            "Optimizer",
            "Adam and AdamW keep two more tensors per parameter than plain SGD.",
            Group.OPTIMISATION,
            Effect.NEW_RUN,
        ),
    ] = Optimizer.ADAMW
    optimizer_impl: Annotated[
        OptimizerImpl,
        Setting(
            "Optimizer kernels",
            "'foreach' batches the parameters, 'fused' does the whole step in one kernel, 'loop' walks them.",
            Group.OPTIMISATION,
            Effect.OPTIMIZER,
            advanced=True,
            short="optimizer",
        ),
    ] = OptimizerImpl.AUTO
    learning_rate: Annotated[
        float,
        Field(gt=0, le=1000),
        Setting(
            "Learning rate",
            "The optimizer's step size.",
            Group.OPTIMISATION,
            Effect.NEXT_STEP,
            short="lr",
        ),
    ] = 1e-3

    max_steps: Annotated[
        int | None,
        Field(ge=1, le=1_000_000_000_000),
        Setting(
            "Steps", "Ends the run after so many steps; empty: until stopped.", Group.RUN, Effect.NEXT_STEP
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        Field(gt=0, le=10_000_000),
        Setting(
            "Duration",
            "Ends the run after so many seconds; empty: until stopped.",
            Group.RUN,
            Effect.NEXT_STEP,
            unit="s",
        ),
    ] = None
    seed: Annotated[
        int,
        Field(ge=0, le=2**63 - 1),
        Setting(
            "Seed", "Seeds weights, shuffling and generated data.", Group.RUN, Effect.NEW_RUN, advanced=True
        ),
    ] = 0
    stall_after_s: Annotated[
        float,
        Field(ge=1, le=86_400),
        Setting(
            "Stalled after",
            "A run that has finished no step for this long is called stalled, and its stacks are written "
            "to its output.",
            Group.RUN,
            Effect.NEW_RUN,
            unit="s",
            advanced=True,
        ),
    ] = 60.0
    profile_at: Annotated[
        str | None,
        Setting(
            "Profile at",
            "Steps at which the next three are profiled, as in 100 or 100,1000; not before the run has "
            "settled.",
            Group.RUN,
            Effect.NEXT_STEP,
            advanced=True,
            short="profile at",
        ),
    ] = None
    measure_own_cost: Annotated[
        bool,
        Setting(
            "Measure own cost",
            "Takes up to 2 % of the steps without observing them, in blocks of 20 (40 on a GPU), to tell "
            "what Stepscope costs this run; of those steps only how long they took is known.",
            Group.RUN,
            Effect.NEXT_STEP,
            advanced=True,
            short="own cost",
        ),
    ] = True
    inject: Annotated[
        str | None,
        Setting(
            "Injected fault",
            "Breaks the run on purpose, to learn what it looks like: leak:graph, leak:hidden, leak:list, "
            "leak:cache, leak:host, leak:worker, fragmentation or elsewhere, each with a size a step "
            "(leak:list:256KiB), or sync, or oom:STEP.",
            Group.RUN,
            Effect.NEW_RUN,
            advanced=True,
        ),
    ] = None
