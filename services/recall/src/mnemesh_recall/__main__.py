"""`python -m mnemesh_recall` runs the service."""

import sys

from mnemesh_recall.main import main

sys.exit(main())
