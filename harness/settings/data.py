"""Settings of batches and their transfer to the device."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.settings.declaration import Effect, Group, Need, Setting
from harness.settings.devices import COPIED_TO


class DataSettings(BaseModel):
    """Batches and their transfer to the device."""

    batch_size: Annotated[
        int,
        Field(ge=1, le=65536),
        Setting(
            "Batch size",
            "Samples per forward pass. Larger batches use the device better and need memory for activations.",
            Group.DATA,
            Effect.LOADER,
            short="batch",
            affects_prediction=True,
        ),
    ] = 32
    grad_accumulation: Annotated[
        int,
        Field(ge=1, le=1024),
        Setting(
            "Gradient accumulation",
            "Forward and backward passes per optimizer step: a larger effective batch without more memory.",
            Group.DATA,
            Effect.NEXT_STEP,
            short="accumulation",
            affects_prediction=True,
        ),
    ] = 1
    pin_memory: Annotated[
        bool,
        Setting(
            "Pinned memory",
            "The loader returns batches in page-locked memory: copies to the GPU are faster and can overlap "
            "with computation.",
            Group.DATA,
            Effect.LOADER,
            devices=COPIED_TO,
            short="pinned",
            needs=Need.PINNED_MEMORY,
            trial_values=(True,),
        ),
    ] = False
    non_blocking: Annotated[
        bool,
        Setting(
            "Non-blocking copies",
            "The CPU does not wait for the copy to the GPU; copies overlap only from pinned memory.",
            Group.DATA,
            Effect.NEXT_STEP,
            devices=COPIED_TO,
            short="non-blocking",
        ),
    ] = False
    num_workers: Annotated[
        int,
        Field(ge=0, le=64),
        Setting(
            "Loader workers",
            "Processes that load batches in the background; 0 loads them in the training thread.",
            Group.DATA,
            Effect.LOADER,
            short="workers",
            trial_values=(1, 2, 4),
        ),
    ] = 0
    prefetch_factor: Annotated[
        int,
        Field(ge=1, le=64),
        Setting(
            "Prefetch",
            "Batches that each loader worker loads in advance; unused without workers.",
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
            "An artificial delay per batch, to show what a data-bound run looks like.",
            Group.DATA,
            Effect.LOADER,
            unit="ms",
            advanced=True,
            short="slow loader",
            affects_peak=False,
        ),
    ] = 0.0
