"""Letta's REST API: its paths, bodies, errors and streams, over the services of the mesh."""
