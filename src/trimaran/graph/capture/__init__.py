"""From a job to its dataflow graph."""
