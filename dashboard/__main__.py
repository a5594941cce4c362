"""The server of `stepscope dashboard`: `streamlit run` on this dashboard, without a traceback on Ctrl-C.

Streamlit is imported once Ctrl-C has a handler: the import takes about a second.
"""

import os
import signal
import sys
from pathlib import Path

INTERRUPTED_CODE = 130


def main(flags: list[str]) -> int:
    """Serve until a signal arrives; return the exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # Ignored under nohup.
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED_CODE))
    import click
    from streamlit.web import cli

    signal.signal(signal.SIGINT, before)
    try:
        cli.main(["run", str(Path(__file__).with_name("app.py")), *flags], "streamlit", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED_CODE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
