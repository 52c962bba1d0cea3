"""Between the wire and the domain."""
