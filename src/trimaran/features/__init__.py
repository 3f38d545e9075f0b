"""One module or folder for each question that a user asks; features do not import each other."""
