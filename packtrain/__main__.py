"""Run the command line: `python -m packtrain` is the same as `packtrain`."""

import sys

from packtrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
