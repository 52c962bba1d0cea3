"""The use cases: everything that callers can do with agents, conversations, runs, identities and models."""
