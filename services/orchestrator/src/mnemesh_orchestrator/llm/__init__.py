"""Calls to models: one port, and an adapter for each provider API."""
