"""The job as a dataflow graph. `trimaran.graph.capture.capture` makes one; it imports torch, this does not."""
