"""Measures recall and archival separately, with stores of a given size."""
