"""The requests of clients: rules and the calls of the mesh."""
