"""`python -m harness …`: the same command as `stepscope`."""

import sys

from harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
