"""What measures: a mesh of real processes under a fake model that costs no time."""

import os

# This process starts others while its own channels are open, and calls nothing in between: gRPC's handlers around
# fork would only tell that they were skipped.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
