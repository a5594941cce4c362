"""The end of a process of Stepscope's own."""

import gc
import sys


def skip_last_collection() -> None:
    """Let the process end without Python's last search for garbage, which takes 0.8 s among torch's objects.
    Not where triton is loaded: from 3.9 on (torch 2.15) it prints to stderr what was not freed. And not in a
    process that runs a script, whose objects may do something when they are freed."""
    if "triton._C.libtriton" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()
