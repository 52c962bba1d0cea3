"""The stores of the files service."""
