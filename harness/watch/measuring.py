"""Measurements of a change of settings in a live run, by blocks of steps in randomized pairs.

The run switches between the settings in effect (arm A) and the changed ones (arm B). Neighboring blocks make
a pair; half of the pairs have the order AB and half BA, in random order, so that a drift cancels out. On the
CPU a block of a change that takes effect at the next step is divided into parts, which alternate with those
of the other arm: what else the machine does then affects both. Only the blocks are recorded here:
`harness.analysis.effect.measured` compares them, in another process.
"""

import json

from harness import words
from harness.device.nvml.energy import EnergyMeter
from harness.errors import StepscopeError
from harness.records.measurement import (
    Arm,
    ConclusiveRequest,
    MeasurementBlockRow,
    MeasurementEnd,
    MeasurementEndRow,
    MeasurementRow,
    MeasureRequest,
    judgment_pairs,
)
from harness.records.run import (
    CommandKind,
    CommandRow,
    CommandState,
    DeviceKind,
    EventKind,
    EventRow,
    Severity,
)
from harness.settings.declaration import Effect
from harness.settings.spec import SPECS, difference_title
from harness.watch.boundary import NEVER, Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.judge_queue import JudgeQueue
from harness.watch.live_settings import LiveSettings
from harness.watch.measured_blocks import (
    BLOCK_NS,
    BLOCK_STEPS,
    DISCARDED_NS,
    DISCARDED_STEPS,
    MOST_PARTS,
    BlockUnderWay,
    MeasurementUnderWay,
    balanced_orders,
)

# While a judge computes, no block is measured, for this long at most: the judge takes processor time.
JUDGE_NS = 10_000_000_000
# Pairs that are repeated because something cut in (a pause, emptying the cache), besides one per pair.
_REPEATED = 10


class Measuring(StepAction):
    """Measures one change at a time, on the training thread.

    Attributes:
        to_judge: the measurements to judge.
    """

    commands = frozenset({CommandKind.MEASURE, CommandKind.END_MEASUREMENT})
    capture = "measurement"

    def __init__(self, context: RunContext, live: LiveSettings, meter: EnergyMeter | None = None) -> None:
        """`meter` is by default that of the context's device."""
        self._context = context
        self._meter = meter or EnergyMeter(context.device.facts.uuid)
        self._live = live
        self._journal = context.journal
        self._clock_ns = context.clock_ns
        self._current: MeasurementUnderWay | None = None
        self._count = 0
        self._due = NEVER
        self._deadline_ns: int | None = None
        self.to_judge = JudgeQueue()

    @property
    def is_capturing(self) -> bool:
        """Return whether a measurement is in progress."""
        return self._current is not None

    @property
    def due(self) -> int:
        """The step before which the block may begin or end."""
        return self._due

    @property
    def deadline_ns(self) -> int | None:
        """The time at which the block may begin or end, once it has enough steps."""
        return self._deadline_ns

    def before_request(self, command: CommandRow, boundary: Boundary) -> None:
        """End the measurement before a person's change of settings."""
        if command.kind == CommandKind.SET:
            self._end(boundary, MeasurementEnd.CHANGED, f"Settings were changed by {command.source}.")

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Begin or end a measurement, or reject the request with the reason."""
        answer, step = self._context.answer, boundary.step
        if command.kind == CommandKind.END_MEASUREMENT:
            self._request_end(command, boundary)
            return
        try:
            current = self._planned(command, step)
        except (StepscopeError, ValueError) as error:
            answer(command.command_id, CommandState.REJECTED, step, str(error))
            return
        self._count += 1
        self._current = current
        self._journal.put(current.row)
        pairs = words.plural(len(current.orders), "pair")
        message = f"Measuring {_title(current.row)} in at most {pairs} of blocks."
        answer(command.command_id, CommandState.APPLIED, step, message)
        self._begin_block(current, boundary)

    def before_step(self, boundary: Boundary) -> None:
        """Begin or end a block before the next step, if due."""
        current = self._current
        if current is None:
            return
        if self._live.current is not current.settings:
            self._changed(current, boundary)
            return
        block = current.block
        assert block is not None
        if block.mark != _mark(boundary):
            self._repeat(current, boundary)
            return
        block_ns = current.least_ns(BLOCK_NS)
        if block.first_step is None:
            if self.to_judge.is_busy and (now_ns := self._clock_ns()) < current.judge_deadline_ns:
                block.switch_step, block.switch_ns = boundary.step, now_ns
            discarded_ns = current.least_ns(DISCARDED_NS)
            if self._has_passed(boundary, block.switch_step, block.switch_ns, DISCARDED_STEPS, discarded_ns):
                block.first_step, block.began_energy_j = boundary.step, self._meter.read_j()
                block.began_ns = self._clock_ns()
                self._has_passed(boundary, block.first_step, block.began_ns, BLOCK_STEPS, block_ns)
        elif self._has_passed(boundary, block.first_step, block.began_ns, BLOCK_STEPS, block_ns):
            self._end_block(current, block, boundary)

    def finish(self, boundary: Boundary) -> None:
        """End the measurement with what it has; the run ends before the next step."""
        self._end(boundary, MeasurementEnd.RUN_ENDED, "The run ended in the middle.")

    def abort(self, step: int, why: str) -> None:
        """End the measurement with what it has. Idempotent."""
        del why
        current, self._current = self._current, None
        if current is not None:
            self._record_end(current, step, MeasurementEnd.RUN_ENDED, "The run ended in the middle.")

    def _request_end(self, command: CommandRow, boundary: Boundary) -> None:
        """End the measurement, by a person's request or as it is conclusive."""
        current, conclusive = self._current, ConclusiveRequest.from_json(command.payload)
        state, message = CommandState.APPLIED, "The measurement has ended."
        if current is None or (conclusive is not None and conclusive.measurement != current.row.number):
            state, message = CommandState.REJECTED, "No such measurement is in progress."
        elif conclusive is None:
            self._end(boundary, MeasurementEnd.STOPPED, f"Stopped by {command.source}.")
        else:
            pairs = words.plural(conclusive.pairs, "pair")
            self._end(boundary, MeasurementEnd.COMPLETED, f"Conclusive after {pairs}.")
        self._context.answer(command.command_id, state, boundary.step, message)

    def _planned(self, command: CommandRow, step: int) -> MeasurementUnderWay:
        """Return the measurement that `command` requests. Raises StepscopeError or ValueError."""
        if self._current is not None:
            row = self._current.row
            raise StepscopeError(
                f"Another measurement is in progress ({_title(row)}, pair {self._current.pair + 1} of "
                f"{row.pairs}); wait for its end, or end it first."
            )
        request = MeasureRequest.from_json(command.payload)
        before, after = self._live.arms(request.settings)
        if not after:
            raise StepscopeError("These values are already in effect; there is nothing to measure.")
        row = MeasurementRow(
            self._count + 1,
            step,
            self._clock_ns(),
            command.command_id,
            command.source,
            json.dumps(before),
            json.dumps(after),
            request.pairs,
            int(request.keep_if_better),
        )
        orders = balanced_orders(request.pairs, command.command_id)
        return MeasurementUnderWay(row, {Arm.A: before, Arm.B: after}, orders, settings=self._live.current)

    def _begin_block(self, current: MeasurementUnderWay, boundary: Boundary) -> None:
        """Switch to the arm of the next block, if it is another one."""
        arm = current.next_arm
        if arm is not current.arm and not self._switch(current, arm, boundary):
            return
        boundary.changed(boundary.step)
        current.settings = self._live.current
        now_ns = self._clock_ns()
        current.block = BlockUnderWay(arm, boundary.step, now_ns, _mark(boundary))
        self._due, self._deadline_ns = boundary.step + DISCARDED_STEPS, None

    def _switch(self, current: MeasurementUnderWay, arm: Arm, boundary: Boundary) -> bool:
        """Apply the settings of `arm`; return False if that fails, which ends the measurement."""
        try:
            self._live.switch(
                current.values[arm], boundary.step, current.row.command_id, is_trial=arm is Arm.B
            )
        except (StepscopeError, RuntimeError, OSError, ValueError, MemoryError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self._end(boundary, MeasurementEnd.FAILED, f"The settings could not be applied: {reason}")
            return False
        current.arm = arm
        if self._context.device.facts.kind is not DeviceKind.CPU:
            # What the other arm had reserved is not this one's.
            self._context.device.empty_cache()
        return True

    def _has_passed(
        self, boundary: Boundary, from_step: int, from_ns: int, steps: int, duration_ns: int
    ) -> bool:
        """Return whether so many steps and so much time have passed; note what is due otherwise."""
        self._due, self._deadline_ns = from_step + steps, None
        if boundary.step < self._due:
            return False
        self._due, self._deadline_ns = NEVER, from_ns + duration_ns
        return self._clock_ns() >= self._deadline_ns

    def _end_block(self, current: MeasurementUnderWay, block: BlockUnderWay, boundary: Boundary) -> None:
        """Record the block or part, unless it only warmed up, and begin the next one or end."""
        assert block.first_step is not None
        if current.position < 0:
            current.parts = self._parts(current, boundary.step - block.first_step)
        else:
            current.recorded.append(self._row(current, block, boundary))
        current.position += 1
        # A pair is recorded as a whole, because one that something cuts into is repeated.
        if len(current.recorded) == len(Arm) * current.parts:
            for row in current.recorded:
                self._journal.put(row)
            current.recorded.clear()
            current.pair, current.position = current.pair + 1, 0
        if current.pair == len(current.orders):
            number, is_judged = current.row.number, bool(current.row.keeps_if_better)
            self._end(boundary, MeasurementEnd.COMPLETED, "All pairs were measured.")
            self.to_judge.numbers += [number] * is_judged
            return
        if current.position == 0 and current.pair in judgment_pairs(current.row.pairs):
            self.to_judge.numbers.append(current.row.number)
            current.judge_deadline_ns = self._clock_ns() + JUDGE_NS
        self._begin_block(current, boundary)

    def _parts(self, current: MeasurementUnderWay, steps: int) -> int:
        """Return the number of parts of each block, from the steps in the one that warmed up."""
        is_cpu = self._context.device.facts.kind is DeviceKind.CPU
        names = current.values[Arm.B]
        if not is_cpu or any(
            name not in SPECS or SPECS[name].effect is not Effect.NEXT_STEP for name in names
        ):
            return 1
        return max(1, min(MOST_PARTS, steps // BLOCK_STEPS))

    def _row(
        self, current: MeasurementUnderWay, block: BlockUnderWay, boundary: Boundary
    ) -> MeasurementBlockRow:
        """Return the row of a block or part that ends before the next step."""
        assert block.first_step is not None
        return MeasurementBlockRow(
            current.row.number,
            current.pair + 1,
            current.position + 1,
            block.arm,
            block.first_step,
            boundary.step - 1,
            block.began_ns,
            self._clock_ns(),
            self._context.marks.settings_version,
            block.began_energy_j,
            self._meter.read_j(),
        )

    def _repeat(self, current: MeasurementUnderWay, boundary: Boundary) -> None:
        """Begin the pair under way once more: something cut in."""
        current.repeated += 1
        if current.repeated > current.row.pairs + _REPEATED:
            message = "Its blocks were interrupted too often, by pauses or by memory that ran out."
            self._end(boundary, MeasurementEnd.FAILED, message)
            return
        current.recorded.clear()
        current.position = min(current.position, 0)
        self._begin_block(current, boundary)

    def _changed(self, current: MeasurementUnderWay, boundary: Boundary) -> None:
        """The run changed settings by itself, as after memory ran out."""
        was_undone = current.arm is Arm.B and self._live.trial is None
        if was_undone:
            current.arm = Arm.A
            self._end(boundary, MeasurementEnd.OUT_OF_MEMORY, "Memory ran out with the changed settings.")
        else:
            self._end(boundary, MeasurementEnd.CHANGED, "The run changed its settings by itself.")

    def _end(self, boundary: Boundary, state: MeasurementEnd, message: str) -> None:
        """Return to the settings at its begin, and record the end. Does nothing when none is in progress."""
        current, self._current = self._current, None
        if current is None:
            return
        self._due, self._deadline_ns = NEVER, None
        if current.arm is Arm.B:
            try:
                self._live.switch(
                    current.values[Arm.A], boundary.step, current.row.command_id, is_trial=False
                )
                message = f"{message} The settings are those before it again."
            except (StepscopeError, RuntimeError, OSError, ValueError, MemoryError) as error:
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                message = f"{message} The settings before it could not be restored: {reason}"
        boundary.changed(boundary.step)
        self._record_end(current, boundary.step, state, message)

    def _record_end(
        self, current: MeasurementUnderWay, step: int, state: MeasurementEnd, message: str
    ) -> None:
        self._meter.close()
        now_ns, row = self._clock_ns(), current.row
        self._journal.put(MeasurementEndRow(row.number, step, now_ns, state, message))
        severity = Severity.INFO if state is MeasurementEnd.COMPLETED else Severity.WARNING
        pairs = words.plural(current.pair, "pair")
        text = f"Measured {_title(row)}: {pairs}. {message}"
        detail = json.dumps({"measurement": row.number, "pairs": current.pair})
        self._journal.put(
            EventRow(now_ns, step, EventKind.MEASUREMENT, severity, "measured", text, detail, row.command_id)
        )


def _mark(boundary: Boundary) -> tuple[int, int]:
    """Return a token that changes when something cuts into a block."""
    return boundary.unsettled_until, boundary.pauses


def _title(row: MeasurementRow) -> str:
    return difference_title(json.loads(row.before), json.loads(row.after))
