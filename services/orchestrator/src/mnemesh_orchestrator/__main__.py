"""`python -m mnemesh_orchestrator`."""

import sys

from mnemesh_orchestrator.main import main

sys.exit(main())
