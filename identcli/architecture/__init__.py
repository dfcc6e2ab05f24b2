"""Facts of an architecture, its families of transformations and their dimensions. Knows nothing of torch."""
