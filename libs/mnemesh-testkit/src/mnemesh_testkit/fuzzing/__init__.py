"""Hostile, invalid and undecodable requests for every method of the contracts."""
