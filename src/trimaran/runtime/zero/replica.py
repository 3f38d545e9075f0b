"""A replica of the user's own model whose parameters are sharded over the replicas, by FSDP2.

Each unit of the strategy is gathered before its forward; with zero=3 it is freed after it, and gathered again before
its backward. Its gradients are summed and scattered after its backward. The next unit's gather is started ahead. The
optimizer sees the shards, as DTensors.

Between steps every parameter is a shard again, also after an evaluation: only then can weights be saved and loaded.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from trimaran.graph.batches import split_batch
from trimaran.program.types import Execution
from trimaran.runtime.part import Sharing
from trimaran.runtime.record import Recorder
from trimaran.runtime.zero.collectives import Notes, UnitGather, UnitScatter
from trimaran.runtime.zero.unwrap import Wrapping


class ShardedReplica:
    """The user's model on one rank.

    Args:
        model: on its device, with the same weights on all replicas
        own_loss: the model computes its loss (`Job.loss` is None)
        execution: "compiled" runs it through torch.compile
        mesh: the replicas
        units: paths of the modules that are gathered as one, in the order of the forward
        freed: a unit is freed after its forward (zero=3)

    Attributes:
        parameters: the shards that are trained
    """

    is_last = True

    def __init__(
        self,
        model: nn.Module,
        *,
        own_loss: bool,
        execution: Execution,
        mesh: DeviceMesh,
        units: Sequence[str],
        freed: bool,
    ) -> None:
        self.module = model
        self._notes = Notes()
        self._own_loss = own_loss
        self._freed = freed
        self._forwards = self._backwards = 0
        self._wrapping = Wrapping(model)
        modules = [*(model.get_submodule(unit) for unit in units), model]
        numbers = [*range(1, len(modules)), 0]
        sharded = [_shard(*one, mesh, freed=freed, notes=self._notes) for one in zip(modules, numbers, strict=True)]
        self._root, self._units = sharded[-1], sharded[:-1]
        self._wrapping.empty()
        self.parameters = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
        _follow_recurrent_weights(model)
        for unit, following in zip((self._root, *self._units), self._units, strict=False):
            unit.set_modules_to_forward_prefetch([following])
        self._run: nn.Module = torch.compile(model) if execution == "compiled" else model  # type: ignore[assignment]

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `stages.Stage`."""
        self._notes.microbatch, self._notes.backward = self._forwards, False
        self._forwards += 1
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss)
        return {}, self._run(*arguments, **keywords)

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `stages.Stage`."""
        self._notes.microbatch, self._notes.backward = self._backwards, True
        self._backwards += 1
        # What is kept between forward and backward is kept between microbatches too.
        self._root.set_reshard_after_backward(self._freed or completing)
        before = self._take_gradients()
        if roots:
            torch.autograd.backward(list(roots), list(gradients))
        self._notes.settle()
        for parameter, gradient in before:
            if parameter.grad is not None:
                _local(gradient).add_(_local(parameter.grad))
            parameter.grad = gradient
        if completing:
            self._forwards = self._backwards = 0

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `stages.Stage`."""
        self._notes.microbatch, self._notes.backward = 0, False
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss)
        output = self._run(*arguments, **keywords)
        self.free()
        return {}, output

    def record(self, recorder: Recorder) -> None:
        """Write gathers and scatters down from now on.

        Args:
            recorder: of this rank
        """
        self._notes.recorder = recorder

    def sharing(self, ranks: tuple[int, ...]) -> dict[str, Sharing]:
        """How each parameter lies on the replicas.

        Args:
            ranks: the replicas
        """
        return {
            name: Sharing(ranks=ranks, shape=parameter.shape, whole=partial(_whole, parameter))
            for name, parameter in self.module.named_parameters()
            if isinstance(parameter, DTensor)
        }

    def place(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Keep this rank's share of whole weights.

        Args:
            weights: of the model's `state_dict`
        """
        self.free()
        with torch.no_grad():
            for name, tensor in self.module.state_dict().items():
                _keep_share(tensor, weights[name])

    def close(self) -> None:
        """Give the model back as it was, but for its weights: save them before; see `stages.Stage`."""
        self._wrapping.restore()

    def _take_gradients(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Gradients of earlier microbatches, which are added up here: FSDP2 would read a scatter under way."""
        taken = [(one, one.grad) for one in self.parameters if one.grad is not None]
        for parameter, _ in taken:
            parameter.grad = None
        return taken

    def free(self) -> None:
        """Shard everything, and forget the order of the last forward, which an evaluation leaves behind."""
        if hasattr(self._root, "reset_iter_state"):  # torch 2.13
            self._root.reset_iter_state()
        for module in (self._root, *self._units):
            module.reshard()


def _shard(module: nn.Module, number: int, mesh: DeviceMesh, *, freed: bool, notes: Notes) -> FSDPModule:
    module.register_forward_hook(_own_outputs)
    # The root keeps its parameters for the backward, which needs them first.
    unit: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=freed and number > 0)
    # Gradients are summed, not averaged: see `losses`.
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    # They are called, not asked for their class, whose home in torch is private.
    unit.set_custom_all_gather(UnitGather(number, notes))  # type: ignore[arg-type]
    unit.set_custom_reduce_scatter(UnitScatter(number, notes))  # type: ignore[arg-type]
    return unit


def _own_outputs(module: nn.Module, arguments: Any, output: Any) -> Any:
    """Outputs that are views, copied: who changes a view in place drops the hook that gathers before the backward."""
    if isinstance(output, torch.Tensor):
        return output.clone() if output._is_view() and output.requires_grad else output
    if type(output) in (tuple, list):
        return type(output)(_own_outputs(module, arguments, one) for one in output)
    if type(output) is dict:
        return {name: _own_outputs(module, arguments, one) for name, one in output.items()}
    return output


def _follow_recurrent_weights(model: nn.Module) -> None:
    """Let recurrent modules, which keep a list of their weights, see those that were gathered."""

    def refresh(module: nn.Module, arguments: Any) -> None:
        vars(module)["_flat_weights"] = [getattr(module, name) for name in module._flat_weights_names]  # type: ignore[union-attr]

    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.register_forward_pre_hook(refresh)


def _whole(parameter: DTensor, local: torch.Tensor) -> torch.Tensor:
    """The whole of what is laid out like a parameter."""
    spread = DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return spread.full_tensor()


def _keep_share(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    if not isinstance(tensor, DTensor):
        tensor.copy_(whole)
        return
    shares = torch.chunk(whole, tensor.device_mesh.size(), dim=0)
    rank = tensor.device_mesh.get_local_rank()
    if rank < len(shares):
        _local(tensor).copy_(shares[rank])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of this rank."""
    shard: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return shard
