"""The contract's words and the domain's, for the servicers."""
