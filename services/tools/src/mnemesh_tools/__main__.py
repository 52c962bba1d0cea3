"""`python -m mnemesh_tools` runs the service."""

import sys

from mnemesh_tools.main import main

sys.exit(main())
