"""Measures recall and archival by themselves, over stores of the size that is asked for."""
