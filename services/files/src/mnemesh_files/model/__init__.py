"""Types, filters, validation and pure rules of folders and files."""
