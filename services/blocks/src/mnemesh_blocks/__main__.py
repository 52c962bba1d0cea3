"""`python -m mnemesh_blocks` runs the service."""

import sys

from mnemesh_blocks.main import main

sys.exit(main())
