"""Jobs by name: built-in, synthetic, published networks, Hugging Face configurations, files of the user."""
