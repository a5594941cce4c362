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
        self._has_batch = False

    def updated(self, key: int) -> bool:
        """Take notice of a step of an optimizer; return whether it ends the training step."""
        if len(self._members) == 1 and key in self._members:
            self._done.clear()
            self._has_batch = False
            return True
        if key in self._occasional:
            return False
        if key not in self._members:
            return self._joined(key)
        if key in self._done:
            self._drop_missing()
        self._done.add(key)
        return self._is_over()

    def batch_requested(self) -> bool:
        """Take notice of a new batch; return whether it ends a training step that waited for an optimizer."""
        is_waiting = bool(self._done)
        if is_waiting:
            self._drop_missing()
            self._done.clear()
        self._has_batch = True
        return is_waiting

    def forget(self, key: int) -> None:
        """An optimizer does not exist any more."""
        for keys in (self._members, self._occasional, self._done):
            keys.discard(key)

    def _joined(self, key: int) -> bool:
        """Add an optimizer to the cycle. The first one alone is the cycle, so that its step ends an iteration
        that others of the cycle then belong to."""
        is_first = not self._members
        self._members.add(key)
        if is_first or self._has_batch or self._done:
            self._done.add(key)
        return self._is_over()

    def _is_over(self) -> bool:
        if not self._done or self._done < self._members:
            return False
        self._done.clear()
        self._has_batch = False
        return True

    def _drop_missing(self) -> None:
        self._occasional |= self._members - self._done
        self._members = set(self._done)
