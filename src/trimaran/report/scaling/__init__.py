"""A scaling study for people and programs: tables, plots, a document."""
