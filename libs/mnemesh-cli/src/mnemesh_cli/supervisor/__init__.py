"""The supervisor of `mnemesh up`: runs the services of a mesh as child processes."""
