"""`python -m engram_blocks` runs the service."""

import sys

from engram_blocks.main import main

sys.exit(main())
