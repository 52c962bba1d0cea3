"""Protocols of the stores; their docstrings are the contract."""
