"""`python -m engram_orchestrator`."""

import sys

from engram_orchestrator.main import main

sys.exit(main())
