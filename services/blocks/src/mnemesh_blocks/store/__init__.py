"""Where blocks are kept."""
