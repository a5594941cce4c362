"""The optimizer steps that make one training step, where a script has several optimizers."""


class UpdateCycle:
    """Learns which optimizers step in each iteration; the last of them ends the training step.

    Keys identify optimizers. An optimizer that steps a second time while others of the cycle are missing, or
    a new batch in that situation, removes those: they do not step in every iteration. So does a new one that
    steps twice in a row, as that of another training which follows the first.

    Attributes:
        members: the optimizers of an iteration.
        done: those of them that have stepped in the iteration under way.
        has_batch: whether a batch was requested in it.
    """

    def __init__(self) -> None:
        self.members: set[int] = set()
        self._occasional: set[int] = set()
        self.done: set[int] = set()
        self.has_batch = False
        # A new optimizer that took the newest step of all, after the end of an iteration.
        self._late: int | None = None

    def updated(self, key: int) -> bool:
        """Take notice of a step of an optimizer; return whether it ends the training step."""
        if len(self.members) == 1 and key in self.members:
            self.done.clear()
            self.has_batch = False
            return True
        if key in self._occasional:
            return False
        if key not in self.members:
            return self._joined(key)
        if key in self.done:
            self._drop_missing()
        self.done.add(key)
        if key == self._late:
            self._drop_missing()
        self._late = None
        return self._is_over()

    def batch_requested(self) -> bool:
        """Take notice of a new batch; return whether it ends a training step that waited for an optimizer."""
        is_waiting = bool(self.done)
        if is_waiting:
            self._drop_missing()
            self.done.clear()
        self.has_batch = True
        return is_waiting

    def forget(self, key: int) -> None:
        """An optimizer does not exist any more."""
        for keys in (self.members, self._occasional, self.done):
            keys.discard(key)
        if key == self._late:
            self._late = None

    def _joined(self, key: int) -> bool:
        """Add an optimizer to the cycle. The first one alone is the cycle, so that its step ends an iteration
        that others of the cycle then belong to."""
        is_first = not self.members
        self.members.add(key)
        if is_first or self.has_batch or self.done:
            self.done.add(key)
        else:
            self._late = key
        return self._is_over()

    def _is_over(self) -> bool:
        if not self.done or self.done < self.members:
            return False
        self.done.clear()
        self.has_batch = False
        return True

    def _drop_missing(self) -> None:
        self._occasional |= self.members - self.done
        self.members = set(self.done)
