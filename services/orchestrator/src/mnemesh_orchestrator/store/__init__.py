"""The stores. Each method is one transaction, within one organization unless it says otherwise.

A method raises NotFound for what does not exist, and RequestIdReused for a key that was used before with other content.
The docstrings name other errors, and those that mean more.
"""
