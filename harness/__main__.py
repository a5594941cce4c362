"""The process of one shell command, `stepscope …` or `python -m harness …`: streams, Ctrl-C, exit code.

Nothing heavy is imported before Ctrl-C has its handler: importing the commands alone takes half a second.
"""

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED_CODE = 130
_STDIN, _STDOUT, _STDERR = 0, 1, 2
# The name of the file, in frames, of the module that imports others.
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class InterruptHandler:
    """The handler of Ctrl-C. During the command the first one raises KeyboardInterrupt, so that open files
    are closed, where modules are being imported right after that; every other one ends the process at once,
    without a traceback.

    Attributes:
        is_unwinding_allowed: True if KeyboardInterrupt may be raised now.
        ends_by_signal: True if SIGINT is to end the process, after everything that is due at its end.
    """

    def __init__(self) -> None:
        self.is_unwinding_allowed = self.ends_by_signal = False

    def install(self) -> None:
        """Replace Python's handler; if Ctrl-C is ignored (nohup), it stays ignored."""
        atexit.register(self._end)  # Before anything else is registered, so that it is called last.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            sys.unraisablehook = self._report_unraisable

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        if not self.is_unwinding_allowed:
            os._exit(INTERRUPTED_CODE)
        self.is_unwinding_allowed = False
        importer = _outermost_importer(frame)
        if importer is None or sys.gettrace() is not None:
            raise KeyboardInterrupt
        # Raised within an import it can be lost: C code of a module, such as that of numpy.random, drops
        # exceptions that it takes for its own.
        importer.f_trace = _raise_interrupt
        sys.settrace(_trace_no_call)

    def _end(self) -> None:
        """Called at the end of the process, after all other functions that are registered for it."""
        if not self.ends_by_signal:
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # It is None, broken or closed.
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    def _report_unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """End the process on an interrupt in a destructor: Python would print it and continue."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            os._exit(INTERRUPTED_CODE)
        sys.__unraisablehook__(unraisable)


def _outermost_importer(frame: FrameType | None) -> FrameType | None:
    """Return the outermost of the frames that lead to `frame` and import a module; None without one."""
    importer = None
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM and frame.f_code.co_name == "_find_and_load":
            importer = frame.f_back
        frame = frame.f_back
    return importer


def _raise_interrupt(_frame: FrameType, _event: str, _argument: object) -> None:
    """A trace function: interrupt the frame where it goes on."""
    sys.settrace(None)
    raise KeyboardInterrupt


def _trace_no_call(_frame: FrameType, _event: str, _argument: object) -> None:
    """A trace function: leave new frames untraced."""


def main() -> int:
    """Run the command in `sys.argv` and return its exit code."""
    handler = InterruptHandler()
    handler.install()
    reopen_closed_streams()
    from harness import cli
    from harness.ending import skip_last_collection

    if sys.argv[1:2] == ["run"]:
        from harness.cli import scripts

        if (script := scripts.find_script(sys.argv[1:])) is not None:
            code = scripts.run(script)
            handler.ends_by_signal = code == -signal.SIGINT
            return INTERRUPTED_CODE if handler.ends_by_signal else code
    try:
        handler.is_unwinding_allowed = True
        code = cli.run_process()
        handler.is_unwinding_allowed = False
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    finally:
        skip_last_collection()
    # After an interrupt within `exec` of a string, as dataclasses use it, Python would kill itself by SIGINT
    # in the end, wherever it was caught. The next evaluation of a string takes that back.
    eval("None")
    return code


def reopen_closed_streams() -> None:
    """Reopen closed standard descriptors, so that no later file gets their number and is printed into.

    Writes to a closed stdout fail as before; messages to a closed stderr are dropped.
    """
    for descriptor, flags in ((_STDIN, os.O_RDONLY), (_STDOUT, os.O_RDONLY), (_STDERR, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # `open` takes the lowest free number, which is this one: those below are open by now.
            os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(_STDIN, closefd=False)  # noqa: SIM115  (open to the process's end)
    if sys.stdout is None:
        sys.stdout = open(_STDOUT, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
