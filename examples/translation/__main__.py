"""``python -m examples.translation``."""

import sys

from examples.translation.cli import main

if __name__ == "__main__":
    sys.exit(main())
