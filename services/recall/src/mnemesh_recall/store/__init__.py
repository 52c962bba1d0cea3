"""The storage of recall: Protocols in `base`, SQLite and PostgreSQL in `sql`."""
