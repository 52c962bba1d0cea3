"""The block store: its contract and its SQL implementation."""
