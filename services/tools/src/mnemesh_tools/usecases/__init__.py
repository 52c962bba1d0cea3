"""The use cases of tools and executions."""
