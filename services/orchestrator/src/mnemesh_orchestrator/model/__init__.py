"""The domain of the orchestrator: frozen types, filters, rules and validation."""
