"""Letta's data, as its agent files (.af) and its database hold it, and the records of ImportAgent and ExportAgent."""
