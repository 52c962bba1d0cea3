"""The database of agents, conversations, runs, steps, approvals, identities and providers."""
