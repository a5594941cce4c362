"""The server of `stepscope metrics`, without a traceback on Ctrl-C."""

import sys

from dashboard.interrupts import INTERRUPTED_CODE, ending_at_once

if __name__ == "__main__":
    with ending_at_once():
        from dashboard.metrics_app import serve
    try:
        sys.exit(serve(sys.argv[1], int(sys.argv[2])))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_CODE)
