"""`python -m mnemesh_gateway` runs the service."""

import sys

from mnemesh_gateway.main import main

sys.exit(main())
