"""What saves memory, limits it, and what happens when it runs out."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.setting import Effect, Group, Need, OomPolicy, Setting
from harness.settings.devices import COPIED_TO


class MemorySettings(BaseModel):
    """What saves memory, limits it, and what happens when it runs out."""

    empty_cache_every: Annotated[
        int,
        Field(ge=0, le=1_000_000),
        Setting(
            "empty_cache every",
            "Gives cached memory back every N steps (0: never). On the CPU it trims the heap.",
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
            "Keeps only block inputs and computes the rest again in backward: less memory, more time.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            short="checkpointing",
            needs=Need.CHECKPOINTS,
            affects_prediction=True,
        ),
    ] = False
    offload_saved_tensors: Annotated[
        bool,
        Setting(
            "Offload saved tensors",
            "Keeps what backward needs in CPU memory and copies it back when needed.",
            Group.MEMORY,
            Effect.NEXT_STEP,
            devices=COPIED_TO,
            short="offload",
            affects_prediction=True,
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
            needs=Need.CAP,
            affects_peak=False,
            affects_room=True,
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
            affects_peak=False,
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
            affects_peak=False,
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
            affects_peak=False,
        ),
    ] = True

    @property
    def memory_cap_bytes(self) -> int | None:
        """The memory cap in bytes, rounded down; None without one."""
        return None if self.memory_cap_gib is None else int(self.memory_cap_gib * 2**30)
