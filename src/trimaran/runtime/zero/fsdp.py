"""A replica of the user's own model whose parameters are sharded over the replicas, by FSDP2.

Each unit of the strategy is gathered before its forward; with zero=3 it is freed after it, and gathered again before
its backward. Its gradients are summed and scattered after its backward. The next unit's gather is started ahead. The
optimizer sees the shards, as DTensors.

FSDP2 scatters the gradients that there are. Where that depends on the data, replicas would scatter different ones. So
then every parameter of a gathered model has zeros before its backward, and a hook notes which got a gradient.

Between steps every parameter is a shard again, also after an evaluation: only then can weights be saved and loaded.

FSDP2 changes modules in place, and does not undo it: their class, their hooks, their parameters. A model belongs to the
user, and another plan may use it next, so `Wrapping` keeps what was there and restores it. The parameters are the same
objects as before; while the model is sharded they hold no data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from trimaran.base.errors import ExecutionError, InputError
from trimaran.graph.optimizers import marked
from trimaran.graph.types import share_bounds
from trimaran.program.strategy import Execution
from trimaran.runtime.parts.part import Sharing, Used
from trimaran.runtime.parts.replica import WholeModelStage
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.step.updates import local_part
from trimaran.runtime.whole_state import state_of
from trimaran.runtime.zero.collectives import Notes, UnitGather, UnitScatter
from trimaran.user_code.held_state import held_tensors
from trimaran.user_code.model import class_name, has_compiled


class Wrapping:
    """What a model was before it was sharded.

    Args:
        model: the user's; may be changed afterwards
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, type(module), _shallow(vars(module))) for module in model.modules()]
        self._parameters = [(parameter, parameter.shape) for parameter in model.parameters()]

    def empty(self) -> None:
        """Let the original parameters go of their data, once they have been sharded."""
        for parameter, _ in self._parameters:
            parameter.data = parameter.data.new_empty(0)

    def restore(self) -> None:
        """Put classes, hooks and parameters back; the parameters are zeros, in host memory.

        Nothing is gathered: this is called after failures too, when other ranks do not take part.
        """
        for module, kind, attributes in self._modules:
            # torch cannot undo the sharding of a module; without this it could not be sharded again.
            _module_state_mapping.pop(module, None)
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
        for parameter, shape in self._parameters:
            # The host commits no memory for zeros that are not touched.
            parameter.data = torch.zeros(shape, dtype=parameter.dtype)
            parameter.grad = None


def _shallow(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with copies of their containers, so that what is added to a container later is not there."""
    return {name: value.copy() if isinstance(value, (dict, list, set)) else value for name, value in attributes.items()}


class ShardedReplica(WholeModelStage):
    """The user's model on one rank.

    Args:
        model: on its device, with the same weights on all replicas
        own_loss: as for `WholeModelStage`
        execution: as for `WholeModelStage`
        mesh: the replicas
        units: paths of the modules that are gathered as one, in the order of the forward
        freed: a unit is freed after its forward (zero=3)
        varies: which parameters get a gradient depends on the data; there are no units then

    Attributes:
        parameters: the shards that are trained
        used: which of them got a gradient; None: the same ones on all replicas
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        own_loss: bool,
        execution: Execution,
        mesh: DeviceMesh,
        units: Sequence[str],
        freed: bool,
        varies: bool = False,
    ) -> None:
        self._notes = Notes()
        self._freed = freed
        self._forwards = self._backwards = 0
        self._called = False
        self._wrapping = Wrapping(model)
        modules = [*(model.get_submodule(unit) for unit in units), model]
        numbers = [*range(1, len(modules)), 0]
        sharded = [_shard(*one, mesh, freed=freed, notes=self._notes) for one in zip(modules, numbers, strict=True)]
        self._root, self._units = sharded[-1], sharded[:-1]
        if execution == "eager" and not has_compiled(model):
            # torch's compiler alone needs it, and a model that asks for it, as those of Hugging Face do, would run
            # layers that it skips in one process.
            for module in model.modules():
                vars(module).pop("_is_fsdp_managed_module", None)
        self._wrapping.empty()
        self.parameters = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
        self.used = Used(self.parameters) if varies and self.parameters else None
        self._gathered: dict[str, nn.Parameter] = {}
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        _follow_recurrent_weights(model)
        for unit, following in zip((self._root, *self._units), self._units, strict=False):
            unit.set_modules_to_forward_prefetch([following])
        # Compiled as it is sharded.
        super().__init__(model, own_loss=own_loss, execution=execution)

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `Stage`."""
        self._notes.microbatch, self._notes.backward = self._forwards, False
        self._forwards += 1
        self._called = True
        return super().forward(batch, received, samples, completing=completing)

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `Stage`."""
        self._notes.microbatch, self._notes.backward = self._backwards, True
        self._backwards += 1
        # What is kept between forward and backward is kept between microbatches too.
        self._root.set_reshard_after_backward(self._freed or completing)
        before = self._take_gradients()
        if self.used is not None:
            self._fill_with_zeros(self.used)
            if not roots:
                raise ExecutionError(
                    "the loss of a microbatch depends on no parameter, and replicas that shard their gradients must "
                    "all have one: take zero=1, or larger microbatches"
                )
        if roots:
            torch.autograd.backward(list(roots), list(gradients))
        self._notes.settle()
        for parameter, gradient in before:
            if parameter.grad is not None:
                local_part(gradient).add_(local_part(parameter.grad))
            parameter.grad = gradient
        if completing:
            self._forwards = self._backwards = 0

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `Stage`."""
        self._notes.microbatch, self._notes.backward = 0, False
        self._called = True
        result = super().evaluate(batch, received, samples)
        self.free()
        return result

    def record(self, recorder: RunRecorder) -> None:
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
            name: Sharing(
                ranks=ranks,
                shape=parameter.shape,
                dim=0,
                spans=(share_bounds(len(parameter), len(ranks), parameter.device_mesh.get_local_rank()),),
            )
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
            for name, tensor in state_of(self.module).items():
                _keep_share(tensor, weights[name])

    def close(self) -> None:
        """Give the model back as it was, but for its weights: save them before; see `Stage`."""
        self._wrapping.restore()

    def _take_gradients(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Gradients of earlier microbatches, which are added up here: FSDP2 would read a scatter under way."""
        taken = [(one, one.grad) for one in self.parameters if one.grad is not None]
        for parameter, _ in taken:
            parameter.grad = None
        return taken

    def _fill_with_zeros(self, used: Used) -> None:
        """Give every gathered parameter a gradient to add to, so that all replicas scatter all of them."""
        self._root.unshard()
        for name, shard in zip(self._names, self.parameters, strict=True):
            gathered = self.module.get_parameter(name)
            if self._gathered.get(name) is not gathered:
                # FSDP2 keeps the tensor from its first gather on.
                self._gathered[name] = gathered
                gathered.register_post_accumulate_grad_hook(partial(_note, used, shard))
            gathered.grad = torch.zeros_like(gathered)

    def free(self) -> None:
        """Shard everything, and forget the order of the last forward, which an evaluation leaves behind."""
        # Before the first forward there is no order, and torch 2.13 has nothing to forget it with.
        if self._called and hasattr(self._root, "reset_iter_state"):  # torch 2.13
            self._root.reset_iter_state()
        for module in (self._root, *self._units):
            module.reshard()


def _shard(module: nn.Module, number: int, mesh: DeviceMesh, *, freed: bool, notes: Notes) -> FSDPModule:
    module.register_forward_hook(_own_outputs)
    module.register_forward_hook(_shown)
    whole = dict(module.named_parameters())
    # The root keeps its parameters for the backward, which needs them first.
    unit: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=freed and number > 0)
    # Gradients are summed, not averaged: see `step.losses`.
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    # FSDP2 only calls them; their class in torch is private.
    unit.set_custom_all_gather(UnitGather(number, notes))  # type: ignore[arg-type]
    unit.set_custom_reduce_scatter(UnitScatter(number, notes))  # type: ignore[arg-type]
    module.register_forward_hook(_shown_no_more)
    for name, shard in module.named_parameters():
        marked(shard, whole[name])
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


def _note(used: Used, shard: nn.Parameter, gathered: torch.Tensor) -> None:
    used.note(shard)


def _keep_share(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    if not isinstance(tensor, DTensor):
        tensor.copy_(whole)
        return
    shares = torch.chunk(whole, tensor.device_mesh.size(), dim=0)
    rank = tensor.device_mesh.get_local_rank()
    if rank < len(shares):
        local_part(tensor).copy_(shares[rank])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a module returned, as one leaf of a tree."""

    output: Any


def _shown(module: nn.Module, arguments: Any, output: Any) -> Any:
    """An output, and a list of the tensors that its objects hold: FSDP2 looks for tensors in trees only.

    Where it finds none, nothing is gathered before the backward and no gradient is scattered.
    """
    leaves = tree_leaves(output)
    objects = [leaf for leaf in leaves if leaf is not None and not isinstance(leaf, torch.Tensor | str | int | float)]
    if not objects or not torch.is_grad_enabled():
        return output
    held = [tensor for one in objects for tensor in held_tensors(one) if tensor.requires_grad]
    if not held and not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise InputError(
            f"{class_name(module)} returns a {type(objects[0]).__name__} in whose attributes is no tensor with a "
            "gradient, and replicas that shard their gradients must find one: return tensors, a tuple, a dict or a "
            "dataclass of them, or use zero=0 or 1"
        )
    return [held, _Shown(output=output)]


def _shown_no_more(module: nn.Module, arguments: Any, output: Any) -> Any:
    """What the module returned, again."""
    shown = isinstance(output, list) and len(output) == 2 and isinstance(output[1], _Shown)
    return output[1].output if shown else output
