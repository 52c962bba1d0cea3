"""What callers can do with agents and runs, on domain types."""
