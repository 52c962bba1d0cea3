"""Protocols of the services that the files service calls."""
