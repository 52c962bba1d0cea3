"""What commands print: tables and JSON, texts of errors, progress, styles."""
