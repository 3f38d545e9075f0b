"""Memory of a job's step on a device, and its memory plan, before any run."""
