"""The optimizer steps that make one training step, where a script has several optimizers."""


class UpdateCycle:
    """Learns which optimizers step in each iteration; the last of them ends the training step.

    Keys identify optimizers. An optimizer that steps a second time while others of the cycle are missing, or
    a new batch in that situation, removes those: they do not step in every iteration.
    """

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._occasional: set[int] = set()
        self._done: set[int] = set()

    def updated(self, key: int) -> bool:
        """Take notice of a step of an optimizer; return whether it ends the training step."""
        if key in self._occasional:
            return False
        if key not in self._members:
            # The first one alone is the cycle. Another one has stepped in the same iteration, which is over.
            self._members.add(key)
            return len(self._members) == 1
        if key in self._done:
            self._drop_missing()
        self._done.add(key)
        if self._done < self._members:
            return False
        self._done.clear()
        return True

    def batch_requested(self) -> bool:
        """Take notice of a new batch; return whether it ends a training step that waited for an optimizer."""
        if not self._done:
            return False
        self._drop_missing()
        self._done.clear()
        return True

    def _drop_missing(self) -> None:
        self._occasional |= self._members - self._done
        self._members = set(self._done)
