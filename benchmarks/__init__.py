"""Benchmarks of a mesh of real processes with a fake model that answers immediately."""

import os

# This process starts others while its own channels are open and makes no calls in between, so gRPC's fork handlers
# would only log that they were skipped.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
