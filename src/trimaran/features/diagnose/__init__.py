"""Where the time of the steps of a job or a script goes, their bottleneck, and remedies."""
