"""The stores over SQL: SQLite and PostgreSQL."""
