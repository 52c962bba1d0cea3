"""The benchmark of files."""
