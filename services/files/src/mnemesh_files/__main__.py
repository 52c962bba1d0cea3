"""`python -m mnemesh_files` runs the service."""

import sys

from mnemesh_files.main import main

sys.exit(main())
