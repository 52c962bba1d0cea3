"""Where tools are kept."""
