"""Settings that save memory, limit it, and handle out-of-memory errors."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.settings.declaration import Effect, Group, Need, OomPolicy, Setting
from harness.settings.devices import COPIED_TO


class MemorySettings(BaseModel):
    """Settings that save memory, limit it, and handle out-of-memory errors."""

    empty_cache_every: Annotated[
        int,
        Field(ge=0, le=1_000_000),
        Setting(
            "empty_cache every",
            "Releases cached memory every N steps (0: never). On the CPU it trims the heap.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            unit="steps",
            needs=Need.CACHE,
        ),
    ] = 0
    activation_checkpointing: Annotated[
        bool,
        Setting(
            "Activation checkpointing",
            "Saves only the inputs of blocks and recomputes the rest in backward: less memory, more time.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            short="checkpointing",
            needs=Need.CHECKPOINTS,
            affects_prediction=True,
            trial_values=(True,),
        ),
    ] = False
    offload_saved_tensors: Annotated[
        bool,
        Setting(
            "Offload saved tensors",
            "Moves tensors saved for backward to CPU memory and copies them back when needed.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            devices=COPIED_TO,
            short="offload",
            affects_prediction=True,
            trial_values=(True,),
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
            affects_prediction=True,
            trial_values=(True,),
        ),
    ] = True
    memory_cap_gib: Annotated[
        float | None,
        Field(gt=0, le=100_000),
        Setting(
            "Memory cap",
            "The most memory that the run may use; exceeding it is a real out-of-memory error. On the CPU it "
            "limits allocations for the model and its data.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            unit="GiB",
            short="cap",
            needs=Need.CAP,
            affects_peak=False,
            affects_free_memory=True,
        ),
    ] = None
    oom_policy: Annotated[
        OomPolicy,
        Setting(
            "When memory runs out",
            "'rollback' undoes the change of settings right before the error, 'halve' halves the batch and "
            "doubles the accumulation, 'skip' skips the batch; 'stop' ends the run, as does a policy that "
            "does not help.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            short="on OOM",
            affects_peak=False,
        ),
    ] = OomPolicy.ROLL_BACK
    oom_retries: Annotated[
        int,
        Field(ge=1, le=100),
        Setting(
            "Recoveries",
            "The number of out-of-memory errors that a run may recover from before it ends.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            advanced=True,
            short="recoveries",
            affects_peak=False,
        ),
    ] = 3
    memory_history: Annotated[
        bool,
        Setting(
            "Allocation history",
            "Records every allocation with its stack, so that an out-of-memory report names the allocation "
            "sites. Adds overhead to every step.",
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
            "When live tensors leak, or would but for growing inputs, records the allocations of a few "
            "steps, to name their allocation sites; of 50 steps ten minutes later, if none was found.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            advanced=True,
            short="hunt leaks",
            affects_peak=False,
        ),
    ] = True

    @property
    def memory_cap_bytes(self) -> int | None:
        """The memory cap in bytes, rounded down; None without one."""
        return None if self.memory_cap_gib is None else int(self.memory_cap_gib * 2**30)
