"""Conversion between proto messages and the types of the model."""
