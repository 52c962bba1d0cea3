"""Letta in one place: one conversion of its data, its agent files (.af), and the migration of its database."""
