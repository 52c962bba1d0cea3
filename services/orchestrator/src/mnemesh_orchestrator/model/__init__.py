"""The orchestrator's domain: what agents, messages, runs and rules are. Imports nothing of the room."""
