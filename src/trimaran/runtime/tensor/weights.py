"""The user's parameters as shares, in their places and under their names.

DTensor lays out each section of a parameter over the mesh, and gathers it again. In between the model has plain
tensors, one a rank, so that optimizers, buckets and norms work on them as on any other.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from trimaran.graph.regions import Split, share_bounds
from trimaran.graph.types import Parameter
from trimaran.runtime.part import Sharing


class SharedWeights:
    """The sharded parameters of a model on one rank.

    Args:
        model: the user's, whole; its sharded parameters are replaced by shares
        mesh: the ranks that share them
        splits: how each lies on them
        parameters: of the graph, which know the other names of each

    Attributes:
        shares: this rank's, by the name of the parameter
    """

    def __init__(
        self, model: nn.Module, mesh: DeviceMesh, splits: Sequence[Split], parameters: Sequence[Parameter]
    ) -> None:
        self._model = model
        self._mesh = mesh
        self._splits = {split.parameter: split for split in splits}
        self._names = {parameter.name: (parameter.name, *parameter.aliases) for parameter in parameters}
        self.shares: dict[str, nn.Parameter] = {}
        self._own: dict[str, nn.Parameter] = {}
        for name, split in self._splits.items():
            whole = model.get_parameter(name)
            share = nn.Parameter(self._share(whole.detach(), split), requires_grad=whole.requires_grad)
            self.shares[name], self._own[name] = share, whole
            # The shape stays, the memory goes.
            whole.data = whole.new_zeros(()).expand(whole.shape)
            self._place(name, share)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Whole shapes, by every name of each sharded parameter."""
        return {alias: whole.shape for name, whole in self._own.items() for alias in self._names[name]}

    def restore(self) -> None:
        """Give the model its own parameters back: whole, with zeros for what other ranks have. Nobody communicates."""
        for name, whole in self._own.items():
            whole.data = torch.zeros(whole.shape, dtype=whole.dtype, device=whole.device)
            whole.grad = None
            self._place(name, whole)

    def _place(self, name: str, parameter: nn.Parameter) -> None:
        for alias in self._names[name]:
            owner, _, attribute = alias.rpartition(".")
            self._model.get_submodule(owner)._parameters[attribute] = parameter

    def sharing(self, ranks: tuple[int, ...]) -> dict[str, Sharing]:
        """How each sharded parameter lies on the ranks of the mesh.

        Args:
            ranks: of the mesh, in order
        """
        return {
            name: Sharing(ranks=ranks, shape=self._own[name].shape, whole=partial(self._whole, split=split))
            for name, split in self._splits.items()
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put whole tensors in their places.

        Args:
            state: by the names of the model's `state_dict`
        """
        own = dict(state)
        for name, split in self._splits.items():
            whole = state[next(alias for alias in self._names[name] if alias in state)]
            share = self._share(whole.to(self.shares[name].device), split)
            own.update((alias, share) for alias in self._names[name] if alias in own)
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                tensor.copy_(own[name])

    def _share(self, whole: torch.Tensor, split: Split) -> torch.Tensor:
        sections = whole.split(list(split.sections), split.dim)
        placements = [Shard(split.dim)]
        # Every rank has the whole: nothing is sent.
        parts = [distribute_tensor(part, self._mesh, placements, src_data_rank=None).to_local() for part in sections]
        return torch.cat(parts, split.dim).clone(memory_format=torch.contiguous_format)

    def _whole(self, share: torch.Tensor, split: Split) -> torch.Tensor:
        rank, ranks = self._mesh.get_local_rank(), self._mesh.size()
        bounds = [share_bounds(section, ranks, rank) for section in split.sections]
        sizes = [high - low for low, high in bounds]
        wholes = []
        for part, section in zip(share.split(sizes, split.dim), split.sections, strict=True):
            shape = list(share.shape)
            shape[split.dim] = section
            like = torch.empty(shape, device="meta")
            placements = [Shard(split.dim)]
            laid_out = DTensor.from_local(
                part.contiguous(), self._mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
            )
            wholes.append(laid_out.full_tensor())
        return torch.cat(wholes, split.dim)
