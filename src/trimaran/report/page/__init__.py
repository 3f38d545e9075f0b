"""Pages of `trimaran report`: what is on them, and how it is drawn."""
