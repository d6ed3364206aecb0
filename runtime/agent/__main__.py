"""`python -m runtime.agent`: the agent by itself, with the same arguments as `runtime agent`."""

from __future__ import annotations

import argparse
import sys

from runtime.agent.daemon import add_arguments, main

parser = argparse.ArgumentParser(prog="python -m runtime.agent")
add_arguments(parser)
sys.exit(main(parser.parse_args()))
