"""Protocols of the services that the gateway calls."""
