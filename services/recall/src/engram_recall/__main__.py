"""`python -m engram_recall` runs the service."""

import sys

from engram_recall.main import main

sys.exit(main())
