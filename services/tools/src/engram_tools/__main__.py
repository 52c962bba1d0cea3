"""`python -m engram_tools` runs the service."""

import sys

from engram_tools.main import main

sys.exit(main())
