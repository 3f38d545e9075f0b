"""A job traced without its weights: its graph, its step at any batch."""
