"""The RPCs of the orchestrator: decode, call, encode."""
