"""Studies: predictions against published measurements, and published experiments run again."""
