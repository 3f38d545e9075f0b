"""A convergence curve for people and programs: document, lines, drawing."""
