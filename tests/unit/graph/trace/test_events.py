"""Events, roles, phases and places of a recorded step, on small networks that one can follow by hand."""

from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trimaran.base.errors import ExecutionError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage
from trimaran.graph.types import Phase


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def record(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, named: bool = True) -> Recording:
    batch = torch.randn(3, 4)
    with Recorder(model if named else None) as recorder:
        model(batch).square().sum().backward()
        if optimizer is not None:
            optimizer.step()
    return recorder.recording


def ops(trace: StepTrace, phase: Phase) -> list[TraceOp]:
    return [operation for operation in trace.ops if operation.phase is phase]


def of_role(trace: StepTrace, role: Role) -> list[TraceStorage]:
    return [storage for storage in trace.storages if storage.role is role]


def test_a_forward_operation_by_operation() -> None:
    """Linear, batch norm with its counter and statistics, ReLU in place, linear, and the loss; views are left out."""
    trace = record(network()).trace
    assert [(operation.name, operation.module) for operation in ops(trace, Phase.FORWARD)] == [
        ("aten.addmm.default", "0"),
        ("aten.add_.Tensor", "1"),
        ("aten.empty.memory_format", "1"),  # batch norm's own: room for what its backward may want to keep
        ("aten.native_batch_norm.default", "1"),
        ("aten.relu_.default", "2"),
        ("aten.addmm.default", "3"),
        ("aten.pow.Tensor_Scalar", ""),
        ("aten.sum.default", ""),
        ("aten.ones_like.default", ""),
    ]


def test_work_of_a_linear_layer() -> None:
    """[3, 4] by [4, 8]: 2 · 3 · 4 · 8 = 192 FLOP; reads 8 + 12 + 32 numbers and writes 24: 76 · 4 = 304 bytes."""
    first = record(network()).trace.ops[0]
    assert (first.flops, first.nbytes, first.dtype) == (192.0, 304, "float32")
    assert first.duration_s is not None
    assert first.duration_s > 0


def test_an_operation_in_place_makes_the_next_version() -> None:
    trace = record(network()).trace
    relu = next(operation for operation in trace.ops if operation.name == "aten.relu_.default")
    ((number, version),) = relu.reads
    assert (version, relu.writes) == (0, ((number, 1),))
    assert trace.storages[number].version == 1


def test_operations_of_the_backward_have_the_module_of_their_forward() -> None:
    trace = record(network()).trace
    found = {operation.name: operation.module for operation in ops(trace, Phase.BACKWARD)}
    assert found["aten.native_batch_norm_backward.default"] == "1"
    assert found["aten.threshold_backward.default"] == "2"
    assert {operation.module for operation in ops(trace, Phase.BACKWARD) if "mm" in operation.name} == {"0", "3"}


@pytest.mark.parametrize("named", [True, False])
def test_roles_and_names(named: bool) -> None:
    """Modules that are met as they run are as well known as a model that was given."""
    model = network()
    trace = record(model, named=named).trace
    parameters = {trace.names[storage.number] for storage in of_role(trace, Role.PARAMETER)}
    assert parameters == {name for name, _ in model.named_parameters()}
    assert {trace.names[storage.number] for storage in of_role(trace, Role.BUFFER)} == dict(
        model.named_buffers()
    ).keys()
    assert len(of_role(trace, Role.GRADIENT)) == 6
    assert [storage.nbytes for storage in of_role(trace, Role.INPUT)] == [3 * 4 * 4]


def test_the_update_and_the_state_of_the_optimizer() -> None:
    """Adam keeps two moments of each of 6 parameters and a count: 2 · (4·8 + 8 + 8 + 8 + 8·2 + 2) numbers, 6 counts."""
    model = network()
    optimizer = Adam(model.parameters())
    trace = record(model, optimizer).trace
    assert sum(storage.nbytes for storage in of_role(trace, Role.OPTIMIZER)) == (2 * 74 + 6) * 4
    assert all(storage.birth >= 0 for storage in of_role(trace, Role.OPTIMIZER))
    assert {operation.phase for operation in trace.ops[-5:]} == {Phase.UPDATE}
    again = record(model, optimizer).trace
    assert all(storage.birth == -1 for storage in of_role(again, Role.OPTIMIZER))
    assert len(of_role(again, Role.OPTIMIZER)) == 18


def test_clipping_is_part_of_the_update() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Recorder(model) as recorder:
        model(torch.randn(3, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    names = [operation.name for operation in ops(recorder.recording.trace, Phase.UPDATE)]
    assert any("norm" in name for name in names)


def test_weights_are_given_back_as_they_are_and_activations_are_not() -> None:
    trace = record(network()).trace
    assert {s.outside_end for s in of_role(trace, Role.PARAMETER)} == {trace.length}
    hidden = next(s for s in trace.storages if s.packs and s.role is Role.ACTIVATION)
    assert hidden.outside_end < hidden.keep_end


def test_a_window_of_an_unpack_ends_with_its_node() -> None:
    """The events of exp().sum(): exp, pack, sum, ones_like, unpack at 4, mul at 5, and then nothing."""
    leaf = torch.ones(3, requires_grad=True)
    with Recorder() as recorder:
        leaf.exp().sum().backward()
    trace = recorder.recording.trace
    (unpack,) = trace.unpacks
    assert (unpack.node, unpack.moment, unpack.end, trace.length) == ("ExpBackward0", 4, 6, 6)


def test_a_model_in_evaluation_reads_its_statistics() -> None:
    recording = record(network().eval())
    (norm,) = [operation for operation in recording.trace.ops if "batch_norm.default" in operation.name]
    assert not any(number in recording.externals for number, _ in norm.writes)


def test_random_operations_are_not_repeatable() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    trace = record(model).trace
    assert {operation.name for operation in trace.ops if not operation.repeatable} == {"aten.bernoulli_.float"}


def test_a_recording_cannot_stop_under_a_mode_that_came_later() -> None:
    class Later(TorchDispatchMode):
        pass

    recorder = Recorder()
    recorder.start()
    with Later(), raises("recorder.mode-inside", ExecutionError, mode="Later"):
        recorder.stop()
    recorder.stop()


def test_a_recording_cannot_stop_in_the_backward() -> None:
    recorder = Recorder()
    leaf = torch.ones(3, requires_grad=True)
    errors: list[ExecutionError] = []

    def hook(_: torch.Tensor) -> None:
        try:
            recorder.stop()
        except ExecutionError as error:
            errors.append(error)

    leaf.register_hook(hook)
    with recorder:
        leaf.exp().sum().backward()
    assert len(errors) == 1


def test_a_recording_can_stop_from_a_hook_of_a_module() -> None:
    model = network()
    recorder = Recorder(model)
    recorder.start()
    handle = model.register_forward_hook(lambda *_: recorder.stop() and None)
    model(torch.randn(3, 4)).sum().backward()
    handle.remove()
    assert {operation.phase for operation in recorder.recording.trace.ops} == {Phase.FORWARD}


def test_a_block_that_fails_leaves_no_mode_and_no_hooks() -> None:
    with pytest.raises(ValueError, match="stop here"), Recorder():
        raise ValueError("stop here")
    leaf = torch.ones(3, requires_grad=True)
    assert isinstance(leaf.exp().grad_fn._saved_result, torch.Tensor)  # type: ignore[union-attr]
    with Recorder() as recorder:
        pass
    assert recorder.recording.trace.length == 0


def test_recorders_say_when_there_is_nothing() -> None:
    with raises("recorder.nothing-recorded", ExecutionError):
        _ = Recorder().recording
    with raises("recorder.not-started", ExecutionError):
        Recorder().stop()


def test_compiled_blocks_run_as_they_are() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(torch.compile(block, backend="aot_eager"), nn.Linear(4, 2))
    batch = torch.randn(3, 4)
    model(batch).sum().backward()
    plain = [value.grad.clone() for value in model.parameters() if value.grad is not None]
    model.zero_grad()
    with Recorder(model):
        model(batch).sum().backward()
    assert all(torch.equal(value.grad, before) for value, before in zip(model.parameters(), plain, strict=True))  # type: ignore[arg-type]


def test_what_an_unseen_kernel_made_is_met_where_it_is_packed() -> None:
    """As inside compiled blocks: no operation made it, and it was not there before the step."""

    class Unseen(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            with _disable_current_modes():
                result = value.exp()
            context.save_for_backward(result)
            return result

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            (result,) = context.saved_tensors
            return result * gradient

    leaf = torch.ones(3, requires_grad=True)
    with Recorder() as recorder:
        Unseen.apply(leaf).sum().backward()
    trace = recorder.recording.trace
    (storage,) = [storage for storage in trace.storages if storage.packs]
    assert (storage.role, storage.birth, storage.packs) == (Role.ACTIVATION, 0, (0,))
    assert storage.number not in {number for operation in trace.ops for number, _ in operation.writes}


def test_a_parameter_that_is_filled_before_it_is_used_is_no_input() -> None:
    """As where shards of parameters are gathered: the gathered storage is met as a plain tensor first."""
    room = torch.zeros(4, 4)
    shard = torch.ones(4, 4)
    weight = nn.Parameter(room)
    with Recorder() as recorder:
        room.copy_(shard)
        functional.linear(torch.ones(2, 4), weight).sum().backward()
    trace = recorder.recording.trace
    assert [storage.nbytes for storage in of_role(trace, Role.PARAMETER)] == [64]
    assert weight.untyped_storage() is next(iter(recorder.recording.externals.values()))()


def test_what_stays_and_was_first_met_in_the_backward_was_there_before() -> None:
    """As the buckets of gradients that replicas add up."""
    bucket = torch.zeros(3)
    leaf = torch.ones(3, requires_grad=True)

    def keep(value: torch.Tensor) -> None:
        bucket.copy_(value.grad)  # type: ignore[arg-type]

    leaf.register_post_accumulate_grad_hook(keep)
    with Recorder() as recorder:
        leaf.exp().sum().backward()
    assert [storage.birth for storage in of_role(recorder.recording.trace, Role.GRADIENT)] == [5, -1]


def test_gradients_that_accumulate_were_there_before() -> None:
    model = network()
    record(model)
    trace = record(model).trace
    assert {storage.birth for storage in of_role(trace, Role.GRADIENT)} == {-1}
