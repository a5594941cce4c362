"""Settings of a run's length and its observers."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.settings.declaration import Effect, Group, Setting


class RunSettings(BaseModel):
    """The length of a run, and its observers."""

    max_steps: Annotated[
        int | None,
        Field(ge=1, le=1_000_000_000_000),
        Setting(
            "Steps",
            "Ends the run after this number of steps; empty: until stopped.",
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
            "Ends the run after this number of seconds; empty: until stopped.",
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
            is_identifier=True,
        ),
    ] = 0
    stall_after_s: Annotated[
        float,
        Field(ge=1, le=86_400),
        Setting(
            "Stalled after",
            "A run without a finished step for this long counts as stalled, and its stacks are written to "
            "its output.",
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
            "Steps at which a profile of three steps starts, as in 100 or 100,1000; not before the steady "
            "state.",
            Group.RUN,
            Effect.NEXT_STEP,
            advanced=True,
            short="profile at",
            affects_peak=False,
        ),
    ] = None
    measure_overhead: Annotated[
        bool,
        Setting(
            "Measure overhead",
            "Runs up to 2 % of the steps unobserved, in blocks of 20 (40 on a GPU), to measure the overhead "
            "of Stepscope; only the duration of those steps is recorded.",
            Group.RUN,
            Effect.NEXT_STEP,
            advanced=True,
            short="overhead",
            affects_peak=False,
        ),
    ] = True
    inject: Annotated[
        str | None,
        Setting(
            "Injected fault",
            "Injects a fault, to show what it looks like: leak:graph, leak:hidden, leak:list, leak:cache, "
            "leak:host, leak:worker, fragmentation or elsewhere, each with a size per step "
            "(leak:list:256KiB), or sync, or oom:STEP.",
            Group.RUN,
            Effect.NEW_RUN,
            advanced=True,
        ),
    ] = None
