"""Full-text search inside the SQL database: FTS5 on SQLite, tsvector under GIN on PostgreSQL, one ranking for both."""
