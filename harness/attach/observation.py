"""The steps of a script, from the events at torch's entry points."""

from threading import get_ident
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, is_grad_enabled, nn

from harness.attach.autocast import RegionState
from harness.attach.batches import sizes_of
from harness.attach.discovery import owned_parameters, shapes_of, wraps_trained
from harness.attach.passes import LoaderPass
from harness.attach.step_ends import StepEnds
from harness.watch.readback import plain_scalar


class Observation(StepEnds):
    """A training that has begun, and the events of its steps. Used on the training thread."""

    def batch_requested(self, source: object = None) -> None:
        """A pass over a loader is about to return a batch, or a loader to be opened; None: neither's."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        if self.is_loading:
            return
        if not (self.cycle.done or self.cycle.has_stepped_alone):
            self.cycle.has_batch = True
        elif self.cycle.batch_requested():
            self.tracker.end_with_update()
            self._end_step()
        if self.is_discovering and self.updates:
            self.tracker.leave_out_search(self._find_models)
        is_called = self.sizes.has_early_gradients or (self.sizes.inputs is not None and not self._has_loss)
        has_gradients = self._has_loss or self.sizes.has_gradients
        is_trained = self.sizes.leader is not None and has_gradients
        is_unused = (self.tracker.has_batch or self.sizes.has_early_gradients) and not is_trained
        if (is_called or is_unused) and self.feeding.leave_out_prior(
            source, self.step, is_called=is_called, is_unused=is_unused
        ):
            self._mark_evaluation()
            if is_unused:  # Gradients of an attack on the model, in evaluation mode, are of no step.
                self._has_loss = self.under_way.has_trained = False
                self.tracker.forget_gradients()
                self.sizes.forget_evaluated()
        elif is_called and not (has_gradients or self._may_train_batch) and self.feeding.is_of_other(source):
            self.sizes.forget_call()  # As for the accuracy after the update; gradients are of later calls.
            self.under_way.has_trained = False
        is_part, skipped = False, None
        if self.sizes.has_new_batch:
            is_part, skipped = self.sizes.judge_unused(source, self.step, self.tracker.has_evaluated)
        self.tracker.batch_requested(is_part=is_part, skipped=skipped)

    @property
    def _may_train_batch(self) -> bool:
        """Return whether the step has a batch so far, also one from before an evaluation."""
        left = self.tracker.left
        return self.tracker.has_batch or bool(left.unused or left.call_batches)

    def batch_arrived(self, samples: int | None, batches: LoaderPass | None = None) -> None:
        """A loader returned a batch of `samples`, as `StepTracker.batch_arrived`. Without gradients it is
        evaluated, by whatever model, unless a backward pass follows."""
        if self.is_loading:
            return
        self.tracker.batch_arrived(samples, batches)
        self.sizes.newest, self.sizes.has_new_batch = samples, True
        self.sizes.newest_of[None if batches is None else ref(batches)] = samples or 0
        self.under_way.has_begun = True
        if not is_grad_enabled():
            self._mark_evaluation()

    def other_model_called(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A model that is not followed is called: for training that of a new optimizer, or a further one
        without an optimizer, else one that is not trained itself, such as an average of the weights."""
        in_training_mode = model.training or wraps_trained(model)
        if in_training_mode and is_grad_enabled():
            if self.manual is not None:
                self._further_model = ref(model), sizes_of(inputs)
            if self.is_discovering and self.updates and not self.missed.is_noting:
                self.tracker.leave_out_search(self._find_models)
        elif self.tracker.has_batch:
            self._mark_evaluation()
        elif self._untrained_calls.add():
            self.feeding.has_evaluated = True
            self.leave_plain_step()
            if self._untrained_calls.are_between_steps:
                self.tracker.evaluated_between(in_evaluation_mode=not in_training_mode)

    def _mark_evaluation(self) -> None:
        self.tracker.has_evaluated = self.feeding.has_evaluated = True
        self.under_way.forward_began(is_training=False)

    def batch_missed(self, has_failed: bool = False, samples: int = 0) -> None:
        """A loader has no more batches, or failed. The last of `samples` is still to be returned."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        if not self.is_loading:
            if not self.tracker.has_batch:
                self.cycle.batch_missed()
            self.tracker.batch_missed(has_failed=has_failed)
            self.tracker.samples = samples + (self.tracker.samples or 0) or None

    def forward_began(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A model is called."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        has_gradients, feeding, sizes = is_grad_enabled(), self.feeding, self.sizes
        is_evaluating = not (model.training or wraps_trained(model))
        if not (is_training := has_gradients and not is_evaluating):
            feeding.evaluate(in_evaluation_mode=is_evaluating)
            self._untrained_calls.add()
            if is_evaluating and self.tracker.has_batch:
                self.tracker.evaluation_may_begin()
        elif feeding.has_evaluated:
            self._leave_evaluation_out(inputs)
        elif len(self.tracker.left.unused) > 1:
            is_begun = self.step == 1 and self.under_way.has_trained
            if not is_begun and sizes.begin(self.step):
                self.tracker.restart()
        if self.manual is not None and self.manual.model_called(is_evaluating=is_evaluating):
            self._end_step()
        self.autocast.forward_began(is_training=is_training)
        self.autocast.has_place |= has_gradients
        is_repeated = sizes.inputs is not None and sizes.leader == id(model)
        self.tracker.forward_began(
            has_gradients=has_gradients, is_evaluating=is_evaluating, is_repeated=is_repeated
        )
        if not is_training:
            self.under_way.forward_began(is_training=False)
            sizes.evaluated_inputs = sizes_of(inputs) if has_gradients else None
            return
        self.under_way.has_begun = self.under_way.has_trained = True
        sizes.model_called(id(model), inputs)

    def _leave_evaluation_out(self, inputs: tuple[Any, ...]) -> None:
        """A model is called for training after calls that were none: these may be of no step."""
        is_fitting, untrained = self.sizes.fit(inputs), self._untrained_calls
        if self.feeding.leave_out_evaluated(self.step, is_fitting=is_fitting) or untrained.are_evaluation:
            self.tracker.leave_out()
        elif untrained.are_after_batch:
            self.tracker.leave_out_after_batch()

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region that is about to be entered; None: its own."""
        return self._switches.region_entered(region)

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler scaled a loss; one that is disabled returns it as it is."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        self._switches.has_scaler |= scaled is not loss
        self._scaled = scaled, loss

    def backward_began(self, loss: Tensor | None, is_only: bool = True) -> None:
        """Gradients of `loss` are about to be computed, and of others too unless it `is_only`."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        if self.manual is not None and self.manual.were_cleared():
            self.gradients_cleared()
        if self._further_model is not None:
            self._follow_further_model(*self._further_model)
        self.feeding.has_evaluated = False
        (scaled, unscaled), self._scaled = self._scaled, (None, None)
        # Without a plain layout, as of oneDNN, a loss cannot be read.
        if loss is not None and loss.layout is torch.strided and (not loss.dim() or loss.numel() == 1):
            value: Tensor | None = (unscaled if scaled is loss else loss).detach()
            if value is not None and type(value) is not Tensor:
                value = plain_scalar(value)
            if value is not None:
                self.training.loss = value.reshape(()) if value.dim() else value
                self._has_loss = value.is_cpu or self._copies or self.records.reads_loss(value.device)
        if self.sizes.later.earlier and loss is not None and is_only:
            self.sizes.leave_later_calls(loss if unscaled is None or scaled is not loss else unscaled)
        self._gradients_begin()

    def _follow_further_model(
        self, reference: ReferenceType[nn.Module], sizes: tuple[int | None, int | None]
    ) -> None:
        """Follow the model that was called since the newest backward pass, in a script without an optimizer,
        if none of those that are followed was: the script trains one after the other."""
        model, self._further_model = reference(), None
        if model is None or self.manual is None or self.sizes.inputs is not None:
            return
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return
        if self.manual.has_gradients:
            if self.tracker.has_evaluated:
                self.tracker.leave_out()
            self._end_step()
        self.training.add_models([model])
        self._find_models()
        self.sizes.leader, self.sizes.inputs = id(model), sizes

    def _gradients_begin(self) -> None:
        if self.sizes.has_gradients and self.manual is None:
            self._dropped.further_pass_begins(self.step)
        self.sizes.gradients_begin(self.tracker.samples, is_repeated=self.tracker.repeats_batch)
        self.tracker.backward_began()
        self.under_way.has_begun = self.under_way.has_trained = True

    def backward_ended(self) -> None:
        """Gradients were computed. Raises as `update_ended`, if an optimizer has stepped meanwhile."""
        if self.manual is not None:
            self.manual.gradients_ended(self.training.models)
        self.tracker.backward_ended()
        if self._early_update is not None:
            self.update_returned()

    def backward_failed(self) -> None:
        """The backward pass raised an error."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        self._early_update = None
        self.tracker.backward_failed()

    def gradients_cleared(self) -> None:
        """A model's `zero_grad` was called: without an optimizer, that is where a step begins."""
        leader, inputs = self.sizes.leader, self.sizes.inputs
        if self.manual is not None and self.manual.cleared(is_called=inputs is not None):
            self._end_step()
            if inputs is not None:  # Of the next step.
                self.sizes.leader, self.sizes.inputs = leader, inputs

    def update_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        self.manual, self.training.updating_id = None, id(optimizer)
        if not self.rates.is_own:
            self.rates.update_began(optimizer)
        self.tracker.update_began()
        if id(optimizer) not in self.training.references and self.training.add_optimizer(optimizer):
            self.is_discovering = True

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped. Raises ScriptStopped where the run is to end."""
        if self.under_way.is_plain:
            self.leave_plain_step()
        if not self.rates.is_own:
            self.rates.update_ended(optimizer)
        self.updates += 1
        cycle, key, self.sizes.has_gradients = self.cycle, id(optimizer), False
        if key == cycle.only:
            is_last, cycle.has_batch = True, False
        else:
            has_batch = self.tracker.has_batch or len(self.sizes.early) == 1
            is_last = cycle.updated(key, has_batch=has_batch)
        self.tracker.update_ended(is_last=is_last)
        if self.tracker.backward_depth or self.calls.updating_thread == get_ident():
            # By a hook of a parameter, where starting torch's profiler would end the process, or wrapped.
            self._early_update = is_last or self._early_update is True
        else:
            self._updated(is_last=is_last)

    def update_returned(self) -> None:
        """The call that an update was within has returned. Raises as `update_ended`."""
        if (is_last := self._early_update) is not None and not self.tracker.is_in_backward:
            self._early_update = None
            self._updated(is_last=is_last)

    def _updated(self, *, is_last: bool) -> None:
        """Do what is due after an update, outside of the backward pass."""
        if is_last:
            self._end_step()
            if self.is_discovering:
                self._find_models()
                self.tracker.restart()

    def update_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler did not call it: gradients were not finite. Raises as `update_ended`."""
        self.update_began(optimizer)
        self.update_ended(optimizer)

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """The script has created an optimizer: search for models after the next update."""
        self.leave_plain_step()
        self.is_discovering = True
        members = [one for one in self.training.optimizers if id(one) in self.cycle.members]
        is_shared = not owned_parameters([optimizer]).isdisjoint(owned_parameters(members))
        if is_shared or shapes_of(optimizer) in map(shapes_of, members):
            self.cycle.created(id(optimizer))

    def leave(self) -> None:
        """Leave the script as it is: nothing more is called."""
        self.leave_plain_step()
        self.missed.close()
        self._switches.close()
        self.steps.close()
