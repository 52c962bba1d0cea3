"""Expressions of time in queries, such as "last week" or "in May 2023", and the ranges that they denote."""
