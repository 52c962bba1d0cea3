"""`mnemesh up`: the services of a mesh as processes of one supervisor."""
