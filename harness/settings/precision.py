"""Settings of number formats, kernels and speed."""

from typing import Annotated

from pydantic import BaseModel

from harness.records.run import AmpMode
from harness.settings.declaration import Effect, Group, MatmulPrecision, Need, Setting
from harness.settings.devices import CPU_ONLY, CUDA_ONLY


class PrecisionSettings(BaseModel):
    """Number formats, kernels and speed."""

    amp: Annotated[
        AmpMode,
        Setting(
            "Mixed precision (AMP)",
            "Runs suitable operators in 16 bits: bf16 needs no loss scaling, fp16 uses GradScaler. Saves "
            "activation memory and uses tensor cores.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            short="AMP",
            affects_prediction=True,
            trial_values=(AmpMode.BF16, AmpMode.FP16),
        ),
    ] = AmpMode.OFF
    matmul_precision: Annotated[
        MatmulPrecision,
        Setting(
            "float32 precision",
            "'highest' is plain float32, also in cuDNN's convolutions; 'high' allows TF32 on Ampere and "
            "newer; 'medium' allows bfloat16.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            advanced=True,
            short="matmul",
            trial_values=(MatmulPrecision.HIGH, MatmulPrecision.MEDIUM),
        ),
    ] = MatmulPrecision.HIGHEST
    cudnn_benchmark: Annotated[
        bool,
        Setting(
            "cuDNN benchmark",
            "Benchmarks convolution algorithms for each new input shape and selects the fastest.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            devices=CUDA_ONLY,
            short="cuDNN bench",
            trial_values=(True,),
        ),
    ] = False
    channels_last: Annotated[
        bool,
        Setting(
            "channels_last",
            "Stores images as NHWC, which tensor cores and oneDNN prefer for convolutions.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            needs=Need.CONVOLUTIONS,
            affects_prediction=True,
            trial_values=(True,),
        ),
    ] = False
    compile: Annotated[
        bool,
        Setting(
            "torch.compile",
            "Compiles the model; the first step after the change is slow.",
            Group.PRECISION,
            Effect.MODEL,
            short="compile",
            needs=Need.COMPILER,
            affects_prediction=True,
            trial_values=(True,),
        ),
    ] = False
    flush_denormal: Annotated[
        bool,
        Setting(
            "Flush subnormal numbers",
            "`torch.set_flush_denormal`: the CPU treats numbers below 1.2e-38 as zero. Without it, steps may "
            "get slower as a model converges and its gradients and optimizer state become that small.",
            Group.PRECISION,
            Effect.NEW_RUN,
            devices=CPU_ONLY,
            advanced=True,
            short="flush subnormals",
            affects_peak=False,
            trial_values=(True,),
        ),
    ] = True
    device_metrics: Annotated[
        bool,
        Setting(
            "Metrics on the device",
            "The loss stays on the device and is read a few steps later. Off calls `.item()` in every step, "
            "to show its overhead.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            short="device metrics",
            affects_peak=False,
            trial_values=(True,),
        ),
    ] = True
    nvtx: Annotated[
        bool,
        Setting(
            "NVTX ranges",
            "Names the phases for Nsight.",
            Group.PRECISION,
            Effect.NEXT_STEP,
            devices=CUDA_ONLY,
            advanced=True,
            short="NVTX",
            affects_peak=False,
        ),
    ] = False
