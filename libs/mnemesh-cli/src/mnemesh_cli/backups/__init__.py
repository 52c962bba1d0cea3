"""Backups of a mesh: what is in one, where it is kept, how it is made, restored and verified."""
