"""Processes of a training: started, joined, watched, told to stop, and never left behind."""
