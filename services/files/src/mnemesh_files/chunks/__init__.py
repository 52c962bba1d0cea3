"""Divides parsed documents into passages for search."""
