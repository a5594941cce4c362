"""Out-of-memory errors in the passes of a script that catches them and goes on."""

from harness import words
from harness.analysis.oom.error import read_error
from harness.attach.plain_observation import PlainObservation
from harness.errors import text_of
from harness.watch.oom.errors import is_out_of_memory


class CaughtMemoryErrors:
    """Notes that memory ran out in a pass, and warns once the script goes on. Keeps no error: its frames
    hold the activations of the failed step.

    Attributes:
        is_waiting: whether memory ran out in a pass since the newest call of a model in a step that is not
            plain.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self._pass_name = ""
        self._requested_bytes: int | None = None
        self._recorded: set[str] = set()

    def failed(self, error: BaseException, pass_name: str) -> None:
        """The pass `pass_name`, such as "forward pass", raised `error`, which the script may catch."""
        if not self.is_waiting and is_out_of_memory(error):
            self.is_waiting, self._pass_name = True, pass_name
            self._requested_bytes = read_error(text_of(error)).requested_bytes

    def went_on(self, observation: PlainObservation) -> None:
        """The script calls a model again. The peak of the step is that of the attempt that succeeds."""
        self.is_waiting = False
        observation.steps.memory.restart(1)
        if self._pass_name in self._recorded:
            return
        self._recorded.add(self._pass_name)
        requested = self._requested_bytes
        size = "" if requested is None else f" The request was for {words.size(requested)}."
        step = words.count(observation.under_way.number)
        where = "at" if self._pass_name == "evaluation" else "of"
        observation.warn(
            "out of memory, caught",
            f"Memory ran out in the {self._pass_name} {where} step {step}; the script caught the error and "
            f"went on.{size} Later ones of this kind are not recorded.",
        )
