"""The server of `stepscope metrics`, without a traceback on Ctrl-C."""

import sys

from dashboard.interrupts import ending_at_once

if __name__ == "__main__":
    # uvicorn has a handler while it serves; as it ends, it sends the signal once more.
    with ending_at_once():
        from dashboard.metrics_app import serve

        sys.exit(serve(sys.argv[1], int(sys.argv[2])))
