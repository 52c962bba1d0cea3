"""Full-text search inside the SQL database."""
