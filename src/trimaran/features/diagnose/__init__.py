"""What the steps of a job or a script are spent on, what limits them, and what would help."""
