"""Events that a script has in most of its steps, and are then taken for a part of each."""


class Usual:
    """Counts the steps with an event of one kind."""

    def __init__(self) -> None:
        self._newest_step = self._steps = 0

    def is_usual(self, step: int, *, is_noted: bool = True) -> bool:
        """Note the event in `step`, if it `is_noted`; return whether half of the steps before it or more had
        it. Before the first step it is taken to be usual."""
        earlier = self._steps - (self._newest_step == step)
        if is_noted:
            self._newest_step, self._steps = step, earlier + 1
        return 2 * earlier >= step - 1
