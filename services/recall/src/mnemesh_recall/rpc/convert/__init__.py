"""Conversion between protobuf messages and domain types."""
