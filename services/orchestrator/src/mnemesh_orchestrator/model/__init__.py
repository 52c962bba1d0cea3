"""The domain of the orchestrator: agents, runs, tool rules and models. Imports nothing else of the service."""
