"""The stores in SQL."""
