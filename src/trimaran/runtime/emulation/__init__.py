"""A program with real communication and pretended compute: more ranks than there are cores."""
