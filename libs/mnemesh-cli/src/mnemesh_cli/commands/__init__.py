"""The `mnemesh` command."""
