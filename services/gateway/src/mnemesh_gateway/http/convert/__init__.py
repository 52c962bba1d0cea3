"""Conversion of bodies of the HTTP API to model types, and back."""
