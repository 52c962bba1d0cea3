"""`python -m engram_archival` runs the service."""

import sys

from engram_archival.main import main

sys.exit(main())
