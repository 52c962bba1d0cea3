"""Episodes and facts in SQL."""
