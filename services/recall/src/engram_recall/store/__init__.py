"""Where recall keeps things."""
