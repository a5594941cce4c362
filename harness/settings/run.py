"""When a run ends, and what watches it."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.setting import Effect, Group, Setting


class RunSettings(BaseModel):
    """When a run ends, and what watches it."""

    max_steps: Annotated[
        int | None,
        Field(ge=1, le=1_000_000_000_000),
        Setting(
            "Steps",
            "Ends the run after so many steps; empty: until stopped.",
            Group.RUN,
            Effect.NEXT_STEP,
            affects_peak=False,
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
            affects_peak=False,
        ),
    ] = None
    seed: Annotated[
        int,
        Field(ge=0, le=2**63 - 1),
        Setting(
            "Seed",
            "Seeds weights, shuffling and generated data.",
            Group.RUN,
            Effect.NEW_RUN,
            advanced=True,
            affects_peak=False,
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
            affects_peak=False,
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
            affects_peak=False,
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
            affects_peak=False,
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
