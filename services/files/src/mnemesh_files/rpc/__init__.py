"""The servicers of the files service."""
