"""The storages that autograd keeps from forward to backward, by name."""

from collections.abc import Sequence

from torch import fx, nn

from trimaran.graph.recurrent import workspace_bytes
from trimaran.graph.shapes import Batches, fit
from trimaran.graph.types import Affine
from trimaran.graph.walk import Walk


class SavedStorages:
    """Names the storages that were seen in two walks: by the first tensor that they hold, or by who keeps them.

    Args:
        nodes: of the flow, with names
        walks: of it, at two batch sizes
        batches: the batch sizes

    Attributes:
        found: size of each kept storage [bytes]
    """

    def __init__(self, nodes: Sequence[fx.Node], walks: tuple[Walk, Walk], batches: Batches) -> None:
        self.found: dict[str, Affine] = {}
        self._walks = walks
        self._batches = batches
        self._names: dict[int, str] = {}
        for node in nodes:
            if "tensor" in node.meta:
                for number in walks[0].storages[node]:
                    self._names.setdefault(number, str(node.meta["tensor"]))

    def saved_by(self, node: fx.Node, op: str) -> tuple[str, ...]:
        """The names of what an operation keeps."""
        first, second = self._walks
        names = []
        for place, (one, other) in enumerate(zip(first.saved[node], second.saved[node], strict=False)):
            name = self._names.setdefault(one, f"{op}/{place}")
            self.found.setdefault(name, fit(first.sizes[one], second.sizes[other], self._batches))
            names.append(name)
        return tuple(dict.fromkeys(names))


def fill_workspaces(flow: fx.GraphModule, nodes: Sequence[fx.Node], walks: Sequence[Walk]) -> None:
    """Give the workspaces of LSTMs their sizes.

    An LSTM on a CPU keeps a workspace whose size only oneDNN knows; on a tensor without content it looks empty.
    """
    for node in nodes:
        module = flow.get_submodule(str(node.target)) if node.op == "call_module" else None
        if not isinstance(module, nn.LSTM):
            continue
        for seen in walks:
            empty = [number for number in seen.saved[node] if not seen.sizes[number]]
            source = seen.values[node.all_input_nodes[0]]
            seen.sizes.update(zip(empty, workspace_bytes(module, source), strict=False))
