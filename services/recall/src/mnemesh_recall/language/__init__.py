"""The analysis of English text for full-text search."""
