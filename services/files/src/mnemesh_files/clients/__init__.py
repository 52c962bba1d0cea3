"""Adapters for the services that the files service calls."""
