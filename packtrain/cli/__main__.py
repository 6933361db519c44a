"""`python -m packtrain.cli` is `packtrain`."""

import sys

from packtrain.cli import main

sys.exit(main())
