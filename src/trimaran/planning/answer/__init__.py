"""What a user reads of an answer: the plan with its evidence, as document, page and plan file, and its explanation."""
