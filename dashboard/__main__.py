"""The server of `stepscope dashboard`: `streamlit run` on this dashboard, without a traceback on Ctrl-C."""

import sys
from pathlib import Path

from dashboard.interrupts import ending_at_once


def main(flags: list[str]) -> int:
    """Serve until a signal arrives; return the exit code."""
    with ending_at_once():
        import click
        from streamlit.web import cli

        app = str(Path(__file__).with_name("app.py"))
        try:
            cli.main(["run", app, *flags], "streamlit", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
