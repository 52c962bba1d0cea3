"""Databases for tests: a temporary PostgreSQL server, copies of migrated SQLite files, old revisions, query plans."""
