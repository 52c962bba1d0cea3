"""The step loop: one engine, two policies."""
