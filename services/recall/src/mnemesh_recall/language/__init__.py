"""English words as search knows them."""
