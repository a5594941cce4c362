"""The followed models of a script."""

from weakref import WeakSet

from torch import nn

from harness.attach.discovery import (
    find_models,
    find_new_models,
    kinds_around,
    owned_parameters,
    owns_all,
    parts_beside,
    take_alive,
)
from harness.attach.entries import StepEntries
from harness.attach.missed_models import MissedModels
from harness.attach.training import ScriptTraining


class FollowedModels:
    """Chooses the models to follow: those that are called, and those of optimizers without any of these.

    Attributes:
        called: models that were called before they are followed.
    """

    def __init__(self) -> None:
        self.called: list[nn.Module] = []
        self._models: WeakSet[nn.Module] = WeakSet()
        self._kinds: set[type[nn.Module]] = set()
        # Of models that are not called, but modules in them, as Lightning's: so are those of the next fold.
        self._outer_kinds: set[type[nn.Module]] = set()

    def add_called(self, model: nn.Module) -> None:
        """Add a model that was called, unless it was before."""
        if not self.has_called(model):
            self.called.append(model)

    def has_called(self, model: nn.Module) -> bool:
        """Return whether `model` was called before it is followed."""
        return any(model is one for one in self.called)

    def extend(self, training: ScriptTraining, missed: MissedModels, entries: StepEntries) -> list[nn.Module]:
        """Return the models to follow from now on besides those before; `training` has them too, and
        `entries` leave those that are none any more."""
        models, lost_kinds = take_alive(self.called)
        called, outer = missed.pop_called()
        models += called
        entries.leave_models(outer)
        self._models -= set(outer)
        owned = owned_parameters(training.optimizers)
        if missed.has_lost or lost_kinds:  # The modules within such wrappers exist longer.
            self._kinds, missed.has_lost = self._kinds | lost_kinds, False
            entries.forget_models()
            training.add_models(models := find_models(owned, self._kinds))
        # Followed models are called for a further optimizer of theirs too, and a search takes some 80 ms.
        others = [*self._models, *models]
        if not (owns_all(others, owned) and owns_all(training.models, owned)):
            training.add_models(find_new_models(owned, others, self._kinds) or find_models(owned))
        followed = {id(model) for model in others}
        self._outer_kinds |= kinds_around(training.models, followed)
        added = parts_beside(training.models, followed, owned, self._outer_kinds)
        missed.uncalled.update(added)
        models += added
        self._models.update(models)
        self._kinds.update(map(type, models))
        missed.has_followed = bool(self._kinds)
        return models
