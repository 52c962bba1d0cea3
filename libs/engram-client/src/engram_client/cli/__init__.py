"""The `engram` command line, on top of the client."""
