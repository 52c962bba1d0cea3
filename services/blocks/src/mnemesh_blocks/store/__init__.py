"""The block store on SQLite and PostgreSQL."""
