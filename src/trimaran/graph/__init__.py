"""The job as a dataflow graph. `trimaran.graph.capture.capture` makes one; it imports torch, this does not."""

from trimaran.graph.types import Affine, Graph, Op, Parameter, Phase, TensorSpec

__all__ = ["Affine", "Graph", "Op", "Parameter", "Phase", "TensorSpec"]
