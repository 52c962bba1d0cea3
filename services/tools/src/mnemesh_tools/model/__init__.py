"""The domain of tools: frozen types and pure rules."""
