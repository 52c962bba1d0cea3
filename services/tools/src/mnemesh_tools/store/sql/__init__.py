"""The tool store on SQLite and PostgreSQL."""
