"""The domain of core memory: frozen types and pure rules."""
