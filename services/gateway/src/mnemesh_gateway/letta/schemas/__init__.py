"""The JSON of each resource as Letta's clients send and read it."""
