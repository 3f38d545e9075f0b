"""From a strategy to a program: instructions of each rank."""
