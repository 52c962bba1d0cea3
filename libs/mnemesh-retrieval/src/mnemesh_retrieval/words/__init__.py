"""The analysis of words in texts and queries, the same for every word index."""
