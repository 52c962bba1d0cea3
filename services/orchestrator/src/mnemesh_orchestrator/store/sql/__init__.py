"""The stores on SQLite and PostgreSQL."""
