"""Directories of files: their names in a folder, ignore rules, uploads, and folders that follow them."""
