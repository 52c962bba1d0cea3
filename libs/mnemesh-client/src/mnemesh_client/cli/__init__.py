"""The `mnemesh` command line, on top of the client."""
