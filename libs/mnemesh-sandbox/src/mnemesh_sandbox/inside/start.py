"""The entry point: `python -I -S start.py <plan as JSON>`."""

import importlib
import os
import sys

# The package is importable only while its modules are loaded, so that tools cannot import it.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
launch = importlib.import_module("inside.launch")
sys.path.pop()
sys.dont_write_bytecode = True
launch.main(sys.argv[1])
