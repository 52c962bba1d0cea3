"""Messages and context windows: what they are, what callers ask of them, and how they are found."""
