"""The storage of recall on SQLite and PostgreSQL."""
