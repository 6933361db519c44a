"""`python -m packtrain` is `packtrain`."""

import sys

from packtrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
