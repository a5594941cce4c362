"""Begin and end of the record of a script: the watch over its training, or its end without one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.attach.ending import ending_of
from harness.device.protocol import Device
from harness.errors import StepscopeError
from harness.records.run import RunRow
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.watch.boundary import Outcome
from harness.watch.inbox import Inbox
from harness.watch.run_row import first_row
from harness.watch.unwatched_end import record_end
from harness.watch.watch import CommandSource, RunFiles, Watch

if TYPE_CHECKING:
    from harness.ranks.member import RankMember  # Not every build of torch has torch.distributed.

# Of `_thread.start_new_thread` where there is no memory for a stack.
_NO_THREAD = "can't start new thread"


class WatchOpeningError(StepscopeError):
    """There is too little memory to watch the training."""


class ScriptRecord:
    """Opens the watch over a script's training, or records its end without one.

    Attributes:
        has_trained: whether the script has computed gradients.
    """

    def __init__(
        self,
        folder: RunFolder,
        files: RunFiles,
        inbox: Inbox,
        member: "RankMember | None",
        end_heartbeat: Callable[[], None],
    ) -> None:
        """`end_heartbeat` is called when the watch is open, which beats by itself."""
        self.has_trained = False
        self._folder = folder
        self._files = files
        self._inbox = inbox
        self._commands: CommandSource | None = None if member is None else member.commands
        self._end_heartbeat = end_heartbeat

    def open_watch(self, device: Device, settings: Settings, recorded: str) -> Watch:
        """Open the watch; `recorded` are the settings of the script as a JSON object. Raises
        WatchOpeningError, with which the script goes on, if it lacks memory, and HomeError."""
        try:
            watch = Watch(
                self._files,
                device,
                self._first_row(device, recorded),
                settings,
                self._inbox,
                commands=self._commands,
                prints_errors=False,
            )
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and str(error) != _NO_THREAD:
                raise
            raise WatchOpeningError("This training is not watched: memory or threads are lacking.") from None
        self._end_heartbeat()
        return watch

    def end_unwatched(self, device: Device, error: BaseException | None, failure: str | None) -> None:
        """Record the end of a script without a watch, as `harness.attach.ending.ending_of` has it."""
        ending = ending_of(error, 0, failure, has_trained=self.has_trained)
        record_end(
            self._files,
            device,
            lambda: self._first_row(device, "{}"),
            Settings(),
            self._inbox,
            ending.error,
            Outcome(ending.state, ending.message),
            self._commands,
        )

    def _first_row(self, device: Device, recorded: str) -> RunRow:
        request = self._folder.request()
        return first_row(request.run_id, request.name, recorded, device)
