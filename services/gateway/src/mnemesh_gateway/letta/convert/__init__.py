"""Messages of the contracts to schemas, and back."""
