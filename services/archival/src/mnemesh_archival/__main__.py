"""`python -m mnemesh_archival` runs the service."""

import sys

from mnemesh_archival.main import main

sys.exit(main())
