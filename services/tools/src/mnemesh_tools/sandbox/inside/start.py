"""Entry: `python -I -S start.py <plan as JSON>`."""

import importlib
import os
import sys

# These files are found under the package's short name, and only until they are loaded: a tool never sees them.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
launch = importlib.import_module("inside.launch")
sys.path.pop()
sys.dont_write_bytecode = True
launch.main(sys.argv[1])
