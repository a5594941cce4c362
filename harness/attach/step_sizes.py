"""The samples and the tokens of a script's steps, from its batches and from the inputs of its models."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

from torch import Tensor, is_grad_enabled

from harness.attach.batches import (
    Rows,
    first_tensor,
    is_vector_of_floats,
    rows_of,
    samples_of_first_step,
    sizes_of,
    version_of,
)
from harness.attach.feeding import Feeding
from harness.attach.later_calls import Called, LaterCalls, Sizes
from harness.attach.left_batches import LeftBatches
from harness.attach.passes import LoaderPass
from harness.attach.skipped_batches import SkippedBatches
from harness.attach.usual import Usual

# Of the inputs of a model: it may have acted for an agent that learns from several samples.
ONE_SAMPLE = (1, None)
# From so many changes of size on, calls before one backward pass are of several lengths.
_LEAST_SIZE_CHANGES = 2


class TrainedPass(NamedTuple):
    """A pass with a batch that was trained on, which may exist no longer, and its `opened_after`."""

    batches: ReferenceType[LoaderPass]
    opened_after: int


class StepSizes:
    """Counts the samples and the tokens of the step under way.

    Samples are those of the batches that a loader returned in the step, else of the model's inputs: those of
    the last call of its first model before each backward pass, or of the first further one with several
    samples where that has one: an agent acts in an environment, and then its critic learns. Calls with
    consecutive rows of one tensor count together: a script may have no memory for all at once. Some load
    a batch ahead, such as those with Accelerate. Their loaders are found where a pass is over and the model
    is trained once more before another batch comes: from then on the model's inputs count.

    A batch that the script skips before it calls the model is left out (`SkippedBatches`).

    Where the model is called with the batches of several loaders, together or one after the other, and then
    with more samples than the only loader that still delivers one, the inputs count: `itertools.cycle`
    repeats the batches of a loader that is over.

    Where no loader returned a batch, and the first model was called with several numbers of samples before a
    backward pass, the samples are unknown: they may be the lengths of words, each of which is one sample.

    A model that is trained in evaluation mode counts where no other one is called in the step. So does one
    that is called with gradients within the backward pass alone, as by an adjoint of an ODE.

    Attributes:
        leader: the id of the first model that was called for training in the step; None before.
        inputs: the samples and tokens of its inputs since the last backward pass; None: it was not called.
        evaluated_inputs: those of the newest call in evaluation mode since then; None: it has no gradients.
        has_early_gradients: whether gradients of a model in evaluation mode were computed in the step before
            any batch, and no model was called for training.
        early: samples of the batches that were loaded before training began, the newest first.
        carried: samples of the newest batch that was loaded before the step.
        newest: samples of the newest batch that a loader returned in the step; None: unknown.
        has_gradients: whether no optimizer has stepped since the newest backward pass of the step.
        newest_of: the samples of the newest batch of each pass since the newest backward pass, without those
            that were skipped or evaluated; 0: unknown.
        trained_pass: the pass of the newest batch before the newest backward pass; None: there is none.
        has_new_batch: whether a loader has returned one since the last backward pass.
        has_slices: whether the first model was called with consecutive rows of one tensor in a step so far.
        later: finds the calls since the newest backward pass that the next one is not for.
        joins_batches: whether it was called with the batches of several loaders in the newest step that had
            some, and with more samples than were loaded in each step since.
    """

    def __init__(self, feeding: Feeding, left: LeftBatches) -> None:
        """`feeding` knows the loaders that feed the training, `left` the batches before each call."""
        self._feeding, self._left = feeding, left
        self.leader: int | None = None
        self.inputs: Sizes | None = None
        self.evaluated_inputs: Sizes | None = None
        self._evaluated: Sizes = (None, None)
        self.has_early_gradients = False
        # Whether the step has a backward pass before which no model was called with gradients.
        self._is_late = False
        self.early: Sequence[int] = ()
        self.carried = 0
        self._samples: int | None = None
        self._tokens: int | None = None
        self.newest: int | None = None
        # Those before the newest backward pass that was not repeated.
        self._before: Sizes = (None, None)
        # The backward passes of the step that were not repeated, and the samples of the newest batch before
        # each of these.
        self._backward_passes = self._delivered = 0
        self.has_new_batch = self._prefers_inputs = False
        self.trained_pass: TrainedPass | None = None
        self.newest_of: dict[ReferenceType[LoaderPass] | None, int] = {}
        # Samples of all batches of the step before the newest backward pass.
        self._loaded, self.has_gradients = 0, False
        self._several = Usual()
        # Whether a call of the model has had as many samples as the newest batch of its step, or that before.
        self._has_agreed = self.has_slices = self.joins_batches = False
        # Whether one had as many in a step before.
        self._had_agreed = False
        # The samples of each batch of passes that were over before the first call of the step.
        self._at_once: list[int] = []
        # The samples of all calls of the first model in the step, and of those since the last backward pass;
        # whether the last call before each of these was with fewer than the batches that were joined.
        self._all_called = self._called_since = 0
        self._joins_calls = False
        self._rows: Rows | None = None
        # The first tensor of the newest inputs (None: there is none) and its version, whether these are
        # unknown, whether they are those of the call before, and whether those of the last two calls that
        # were compared are the same: a tensor with another version may be a buffer for all batches.
        self._input: ReferenceType[Tensor] | None = None
        self._input_version = 0
        self._is_input_unknown = self._is_same_input = self._repeats_inputs = False
        # Whether the inputs since the newest backward pass are those before it.
        self._is_same_batch = False
        # How often a call of the model had another number of samples than the one before it, before one
        # backward pass. Once may be for a call that failed.
        self._size_changes = 0
        self.later = LaterCalls()
        # Whether the newest inputs of the first model are a vector of floats, as the state of an environment.
        self._is_vector = False
        # The id of another model, and its inputs: the newest call since the last backward pass, if the first
        # model was not called.
        self._other_inputs: tuple[int, Sizes] | None = None
        self._skipped = SkippedBatches(left)

    def begin(self, step: int) -> bool:
        """A model is called for training for the first time in `step`. If the script has loaded several
        batches of a pass before it, as all of them into memory, and has seen the end of the pass, the model's
        inputs count. Return whether it is as if the training began here: in the first step."""
        unused = self._left.unused
        if len(unused) == len({id(batch.batches) for batch in unused}):
            return False
        if step > 1:
            if not any(batch.may_be_used for batch in unused):
                self._prefers_inputs, self._at_once = True, [batch.samples for batch in unused]
            return False
        for batch in unused:
            if (batches := batch.batches()) is not None:
                batches.early_samples.append(batch.samples)
        self.begin_after(self._feeding.early_samples)
        return True

    def begin_after(self, early: Sequence[int]) -> None:
        """Begin within the first step, for which batches of `early` samples were loaded, the newest first.
        Without any, the batch may be one that a teacher was called with, and is known by the inputs alone."""
        self.early, self.has_new_batch, self._prefers_inputs = early, bool(early), not early

    @property
    def has_other_inputs(self) -> bool:
        """Return whether the model was called since the newest backward pass, with others than before it, or
        another model alone."""
        if self.inputs is None:
            return self._other_inputs is not None
        return not self._is_same_batch

    def drop(self) -> int:
        """The gradients that were computed in the step so far are dropped: count nothing that was before the
        newest backward pass. Return the samples of its batches."""
        dropped, self._loaded, self._all_called = self._loaded, 0, 0
        self._samples = self._tokens = None
        if self.inputs is None and self._other_inputs is not None:
            self.leader, self.inputs = self._other_inputs
        self._before, self._backward_passes = (None, None), 0
        self._skipped.drop_earlier()
        return dropped

    def fit(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether a model's `inputs` have as many samples as the newest batch of the step."""
        return self.newest is not None and self.newest == sizes_of(inputs)[0]

    def judge_unused(self, source: object, step: int, has_evaluated: bool) -> tuple[bool, int | None]:
        """Another batch is requested in `step`, from `source`, and no backward pass came since the newest
        one. Return whether that one belongs to the step although it was evaluated, and the samples of it if
        it is skipped, 0 if they are unknown; None: it is not skipped."""
        if not has_evaluated:
            return False, self._skip_batches(source, step)
        self.newest_of.clear()
        is_part = is_grad_enabled() and self._feeding.computes_twice(source, step)
        self._prefers_inputs |= is_part  # Not each of its batches may be trained.
        return is_part, None

    def _skip_batches(self, source: object, step: int) -> int | None:
        """Return the samples of the batches since the newest backward pass, if the one that is requested is
        of a loader that has returned one of them: of several loaders, each has had its turn."""
        if self.inputs is None or self._feeding.loads_ahead:
            return None
        loader = source.loader if isinstance(source, LoaderPass) else source
        batches = [(None if one is None else one(), samples) for one, samples in self.newest_of.items()]
        is_next = any(one is not None and one.loader is loader for one, _ in batches)
        if not (is_next or self._feeding.is_of_newest(source)):
            return None
        if self._several.is_usual(step):
            return None
        self.inputs, self.has_new_batch, self._called_since = None, False, 0
        feeds = self._feeding.feeds
        skipped = sum(samples for one, samples in batches if one is None or feeds(one) is not False)
        self.newest_of.clear()
        return skipped

    def model_called(self, model_id: int, inputs: tuple[Any, ...]) -> None:
        """A model is called for training, once more or for the first time."""
        if self.leader not in (None, model_id):
            if self.inputs == ONE_SAMPLE or (self.inputs is not None and self._is_vector):
                self._another_called(model_id, inputs)
            elif self.inputs is None:
                self._other_inputs = model_id, sizes_of(inputs)
            return
        sizes, rows = sizes_of(inputs), rows_of(inputs)
        before = None if self.leader is None else self.inputs
        tensor = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
        version = 0 if tensor is None else version_of(tensor)
        if self._is_input_unknown:
            self._is_same_input, self._is_input_unknown = self._repeats_inputs, False
        else:
            before_input = None if self._input is None else self._input()
            is_same_tensor = tensor is not None and before_input is tensor
            self._is_same_input = is_same_tensor and version == self._input_version
            if self._input is not None:
                self._repeats_inputs = self._is_same_input
        self._input, self._input_version = None if tensor is None else ref(tensor), version
        if self.inputs is None:
            self._is_same_batch = self._is_same_input
        if not self._is_same_input:
            self._called_since += sizes[0] or 0
        self._skipped.model_called(sizes[0], repeats_input=self._is_same_input)
        if before is not None:
            sizes = self._called_again(before, sizes, rows)
        self.leader, self.inputs, self._rows = model_id, sizes, rows
        self._is_vector = sizes[0] is None and is_vector_of_floats(first_tensor(inputs))
        self.has_early_gradients = False

    def _called_again(self, before: Sizes, sizes: Sizes, rows: Rows | None) -> Sizes:
        """Return the samples and the tokens of the calls so far, the newest of which is with `sizes`."""
        called = Called(before, self._size_changes)
        if rows is not None and rows.follow(self._rows) and rows.size == sizes[0]:
            sizes, self.has_slices = _sum(before, sizes), True
        elif before[0] != sizes[0] and ONE_SAMPLE[0] not in (before[0], sizes[0]):
            self._size_changes += 1
        if sizes != before:
            self.later.add(called)
        return sizes

    def replay(self, model_id: int, sizes: Sizes) -> None:
        """The first model was called for training with inputs of such samples and tokens, in a plain step
        that is no longer one."""
        self.leader, self.inputs, self._is_input_unknown = model_id, sizes, True
        self._is_vector = False
        self._skipped.model_called(sizes[0], repeats_input=False)

    def _another_called(self, model_id: int, inputs: tuple[Any, ...]) -> None:
        """A further model is called for training after the first one was called with one sample, or with a
        vector that may be one."""
        samples, tokens = sizes_of(inputs)
        if samples is not None and samples > 1:
            self.leader, self.inputs, self._rows = model_id, (samples, tokens), None
            self._is_vector = False

    def leave_later_calls(self, loss: Tensor) -> None:
        """Gradients of `loss` alone are about to be computed: leave out the calls that began after it was."""
        if (called := self.later.before(loss)) is not None:
            self.inputs, self._size_changes = called

    def gradients_begin(self, loaded: int | None, *, is_repeated: bool) -> None:
        """A backward pass begins; so far batches of `loaded` samples were returned in the step. `is_repeated`
        is whether one in the same step was for the same batch, unless a batch came after that one: the
        closure of an optimizer may compute the last one of several micro-batches."""
        self._loaded, self.has_gradients, self._other_inputs = loaded or 0, True, None
        self.later.earlier.clear()
        if self.newest_of:
            newest = next(reversed(self.newest_of))
            batches = None if newest is None else newest()
            self.trained_pass = None if batches is None else TrainedPass(ref(batches), batches.opened_after)
            self.newest_of.clear()
        if self.inputs is None:
            if self.evaluated_inputs is not None:
                self._evaluated = _sum(self._evaluated, self.evaluated_inputs)
                self.evaluated_inputs = None
                self.has_early_gradients = self.leader is None and not loaded
            elif self._samples is None and self._tokens is None:
                self._is_late = True
            return
        samples, tokens = self.inputs
        self._all_called += self._called_since
        self._called_since = 0
        self._has_agreed |= samples is not None and samples in (self.newest, self.carried)
        if self.has_new_batch or not (is_repeated or self._is_same_batch):
            self._before = self._samples, self._tokens
            self._backward_passes += 1
            self._delivered += self.newest or self.carried or (self.early[0] if self.early else 0)
        self.has_new_batch = False
        samples_before, tokens_before = self._before
        samples = samples_before if samples is None else samples + (samples_before or 0)
        tokens = tokens_before if tokens is None else tokens + (tokens_before or 0)
        self._samples, self._tokens, self.inputs = samples, tokens, None
        is_expected = self._feeding.is_dry and self._has_agreed and samples is not None
        if is_expected and samples == self.carried + (loaded or 0):
            self._feeding.load_ahead()
            self._prefers_inputs = True

    def forget_evaluated(self) -> None:
        """Count no inputs of models in evaluation mode, with whatever gradients, in the step so far."""
        self.evaluated_inputs, self._evaluated, self._is_late = None, (None, None), False
        self.early, self._prefers_inputs, self.has_early_gradients = (), False, False

    def forget_call(self) -> None:
        """Count no inputs of the model since the newest backward pass: nothing is trained on these."""
        self.leader = self.inputs = None

    def take(self, loaded: int | None, step: int, *, prefers_inputs: bool) -> tuple[int, int | None]:
        """Return the samples and the tokens of `step`, which ends, and in which batches of `loaded` samples
        were returned, and begin anew. `prefers_inputs` is whether batches may be of the next step."""
        loaded = self._skipped.leave_out(loaded, step)
        called, tokens = self._samples, self._tokens
        if self._is_late:
            self._is_late = False
            if self.inputs is not None and not prefers_inputs:
                called, tokens = _sum((called, tokens), self.inputs)
        if self._size_changes >= _LEAST_SIZE_CHANGES and not loaded:
            called = tokens = None
        elif called is None and tokens is None:
            # Without a backward pass gradients may be those of `torch.autograd.grad`.
            is_usual = self._backward_passes or prefers_inputs
            called, tokens = self._evaluated if is_usual or self.inputs is None else self.inputs
        elif prefers_inputs and not self._has_agreed and self._feeding.has_fed:
            # The inputs may be the nodes of graphs. In the first step the batch may have been only inspected.
            called = called if step == 1 and called == loaded else self._delivered or called
        self.evaluated_inputs, self._evaluated, self.has_early_gradients = None, (None, None), False
        prefers_inputs |= self._prefers_inputs
        prefers_inputs |= self._is_of_batch_before(loaded, called)
        loaded = self._without_later(loaded, called)
        if (joined := self._joined_samples((loaded or 0) + sum(self.early), called)) is not None:
            called, prefers_inputs = joined, True
        samples = (called or loaded if prefers_inputs else loaded or called) or 0
        if any(self.early):
            early, loaded = self.early, loaded or 0
            if self._feeding.may_load_ahead:
                # Of inputs of unknown size: each backward pass is for as many samples as the first batch has.
                called = called or self._backward_passes * early[0]
                samples = samples_of_first_step(early, loaded, called)
                self._feeding.begins_ahead = len(early) == self._backward_passes + 1
            else:
                samples = sum(early) + loaded
            self.early = ()
        self.carried, self.newest, self._prefers_inputs = self.newest or 0, None, False
        self.leader = self.inputs = self._rows = self._samples = self._tokens = None
        self._before, self._input, self.trained_pass = (None, None), None, None
        self.newest_of.clear()
        self.has_gradients = False
        self._is_input_unknown = self._is_same_input = self._is_same_batch = False
        self._size_changes = self._backward_passes = self._delivered = 0
        self._other_inputs = None
        self.later.earlier.clear()
        return samples, tokens

    def _is_of_batch_before(self, loaded: int | None, called: int | None) -> bool:
        """Return whether the step trained on the batch that was loaded before it, as where a script loads
        ahead: the inputs, which were as many as a batch before, are so many and not as many as the newest."""
        had_agreed, self._had_agreed = self._had_agreed, self._has_agreed
        is_single = self._backward_passes == 1 and loaded == self.newest
        return had_agreed and is_single and called == self.carried != loaded

    def _without_later(self, loaded: int | None, called: int | None) -> int | None:
        """Return `loaded` without the batches of a pass that was loaded at once, of which most are of later
        steps, where the inputs say nothing."""
        at_once, self._at_once = self._at_once, []
        is_several = called is None and len(at_once) > self._backward_passes
        return (loaded or 0) - sum(at_once) if is_several else loaded

    def _joined_samples(self, loaded: int, called: int | None) -> int | None:
        """Return the samples that the model was called with if the script repeats the batch of a loader that
        is over, along with the `loaded` ones of another; else None. `called` are those of the last call
        before each backward pass."""
        all_called, self._all_called, self._called_since = self._all_called, 0, 0
        if len(self._feeding.recent) > 1 and loaded in (called, all_called):
            self.joins_batches, self._joins_calls = True, loaded != called
            return None
        joined = (all_called if self._joins_calls else called) or 0
        self.joins_batches = self.joins_batches and joined > loaded
        return joined if self.joins_batches else None


def _sum(one: Sizes, other: Sizes) -> Sizes:
    """Return the sums of samples and of tokens, where either is known."""
    samples, tokens = (
        None if a is None and b is None else (a or 0) + (b or 0) for a, b in zip(one, other, strict=True)
    )
    return samples, tokens
