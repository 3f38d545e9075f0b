"""How published results that were run again are told, beside what was published."""
