"""mnemesh's archival service: archives and their passages, found by words and by meaning."""
