"""Types and pure rules."""
