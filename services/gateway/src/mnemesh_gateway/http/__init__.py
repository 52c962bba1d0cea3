"""The HTTP API: decode, call, encode."""
