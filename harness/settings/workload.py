"""Settings of the model, the data and the device."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.settings.declaration import Effect, Group, Need, Parallelism, Setting
from harness.settings.devices import CUDA_ONLY


class WorkloadSettings(BaseModel):
    """The model, the data and the device."""

    model: Annotated[
        str,
        Setting(
            "Model",
            "The model to train; see `stepscope models`.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            affects_prediction=True,
        ),
    ] = "transformer"
    preset: Annotated[
        str,
        Setting(
            "Size",
            "The model's size, from 'laptop' to 'h200'. If neither model nor size is given, 'workstation' on "
            "a GPU with 8 GiB or more.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            affects_prediction=True,
        ),
    ] = "laptop"
    data: Annotated[
        str,
        Setting(
            "Data",
            "The source of samples. 'synthetic' generates random tensors on the device, without a loader.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            affects_prediction=True,
        ),
    ] = "stdlib-text"
    data_path: Annotated[
        str | None,
        Setting(
            "Folder",
            "For the data sources 'images' and 'text': a folder of your own files.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            needs=Need.FOLDER,
            affects_prediction=True,
        ),
    ] = None
    device: Annotated[
        str,
        Setting(
            "Device",
            "'auto' (the first available of CUDA, XPU and MPS, else the CPU), 'cpu', 'cuda:0', 'xpu:0', "
            "'mps', or the UUID of an NVIDIA GPU. CUDA indices are those after CUDA_VISIBLE_DEVICES.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
        ),
    ] = "auto"
    parallel: Annotated[
        Parallelism,
        Setting(
            "Parallelism",
            "In a run of several processes: 'ddp' has the whole model in each and averages gradients; "
            "'fsdp2' shards weights, gradients and optimizer state.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            needs=Need.RANKS,
        ),
    ] = Parallelism.DDP
    data_parallel: Annotated[
        int,
        Field(ge=1, le=64),
        Setting(
            "GPUs (DataParallel)",
            "Splits each batch over so many GPUs, in threads of one process (torch.nn.DataParallel). A "
            "process for each GPU (`--nproc`) is faster. Memory and telemetry are those of the first GPU.",
            Group.WORKLOAD,
            Effect.NEXT_STEP,
            devices=CUDA_ONLY,
            advanced=True,
            short="GPUs",
            affects_prediction=True,
        ),
    ] = 1
    image_size: Annotated[
        int,
        Field(ge=8, le=1024),
        Setting(
            "Image size",
            "Height and width of the images.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            unit="px",
            needs=Need.IMAGES,
            affects_prediction=True,
        ),
    ] = 32
    sequence_length: Annotated[
        int,
        Field(ge=2, le=65536),
        Setting(
            "Sequence length",
            "Tokens per text sample.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            unit="tokens",
            needs=Need.TEXT,
            affects_prediction=True,
        ),
    ] = 128
    data_samples: Annotated[
        int,
        Field(ge=1, le=100_000_000),
        Setting(
            "Samples",
            "The number of samples of 'shapes' and 'synthetic'; the other sources have a fixed number.",
            Group.WORKLOAD,
            Effect.NEW_RUN,
            advanced=True,
        ),
    ] = 4096
