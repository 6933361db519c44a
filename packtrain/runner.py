"""Alias of `packtrain train`: `python -m packtrain.runner --config_file=F --config=BINDING --output_dir=D`."""

import sys

from packtrain.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
