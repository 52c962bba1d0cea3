"""Conversion of messages of the contract to model types and back."""
