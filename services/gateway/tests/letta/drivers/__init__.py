"""One module per resource of the SDK with the drivers of its methods."""
