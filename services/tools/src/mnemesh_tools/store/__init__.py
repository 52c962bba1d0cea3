"""The tool store: its contract and its SQL implementation."""
