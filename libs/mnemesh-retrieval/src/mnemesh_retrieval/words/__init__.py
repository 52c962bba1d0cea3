"""The analysis of words in texts and queries, the same for every word index.

`analysis` is what the indexes call; the other modules are its steps: `tokens`, `languages`, `stemming`.
"""
