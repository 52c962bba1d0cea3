"""The word index, on either SQL engine."""
