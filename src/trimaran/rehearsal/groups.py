"""Process groups without peers: what a rank asks of its group is noted, and answered as if every member did the same.

Groups are made on torch's own backend for such uses, so ranks, meshes and names are those of a real run. An operator of
a group comes to `Exchanges.run` with its group, reduction and tensors. Where all members can be taken to hold what this
one holds, small values go along: a sum is as many times the value, a gathered tensor repeats it.

Python objects go between ranks that are rehearsed side by side, through files in a folder where they meet; of a rank
that is not rehearsed this one's own object is taken.
"""

import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from trimaran.program.json_files import digest
from trimaran.rehearsal.device.replaced import replace
from trimaran.rehearsal.record import Collective, Group, TensorForm
from trimaran.rehearsal.recorder import Recorder, form_of, nbytes_of
from trimaran.rehearsal.request import RankRequest
from trimaran.rehearsal.stores import store_kind
from trimaran.rehearsal.tensors import fake
from trimaran.rehearsal.values import forget, is_small, set_twin, twin_of

_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "send": "send",
    "isend": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "irecv": "recv",
}
"""Operations by the last part of the operators' names; `shard_dim_alltoall` of DTensor is one of all_to_all too."""

_REDUCTIONS = ("sum", "avg", "max", "min", "product", "premul_sum", "band", "bor", "bxor")

_IN_PLACE = {"all_reduce", "broadcast", "reduce"}

_REDUCING = {"all_reduce", "reduce_scatter", "reduce"}

_WAITING_BELOW_PYTHON = {
    str(Path(torch.__file__).parent / path)
    for path in ("nn/parallel/distributed.py", "distributed/utils.py", "distributed/_state_dict_utils.py")
}
"""Files that call functions below Python which issue and wait: broadcasts of DDP's state, buckets built anew."""

_ON_THE_WAY = (
    str(Path(__file__).parents[1]),
    *(
        str(Path(torch.__file__).parent / path)
        for path in ("_dynamo", "_compile.py", "_ops.py", "utils/_python_dispatch")
    ),
)
"""Files between an operator and what called it."""

_REDUCING_METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
)
"""Of a process group; their operators hold the reduction where Python cannot read it, so it is read on the way."""


class Exchanges:
    """Notes and answers the operators of process groups.

    Args:
        recorder: notes them
        request: which rank of how many this is
    """

    def __init__(self, recorder: Recorder, request: RankRequest) -> None:
        self._recorder = recorder
        self._rank = request.rank
        self._world = request.world
        self._meeting = Meeting(request, recorder)
        self._known: dict[str, tuple[int, ...]] = {}
        self._asked = 0
        self._batch = -1
        self._batches = 0
        self._issued: dict[int, int] = {}  # collective by the storage of what is waited for
        self._below_python: list[int] = []
        self._batch_works: dict[int, tuple[Any, range]] = {}  # collectives that one work stands for, by its identity
        self._backends: dict[str, str] = {}
        self._asked_reduction = ""

    # -----------------------------------------------------------------------------------------------------------------
    # Operators

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """One operator of a process group."""
        name = func._schema.name.split("::")[1]
        if name == "_wrap_tensor_autograd":
            return AsyncCollectiveTensor(args[0])  # waits when it is first used
        if name == "wait_tensor":
            number = self._issued.pop(args[0].untyped_storage()._cdata, None)
            if number is not None:
                self._recorder.wait(number)
            return args[0]
        flat = tree_flatten((args, dict(kwargs)))[0]
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        if name == "batch_p2p_ops":
            return self._batched_messages(func, args, kwargs)
        group = self._group_of(flat)
        operation = _NAMES.get(name, "all_to_all" if "all_to_all" in name or "alltoall" in name else name)
        functional = func.namespace != "c10d"
        given, got = self._sides(operation, func, args, kwargs, tensors)
        arguments = {
            argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
        } | dict(kwargs)
        asynchronous = True if functional else bool(arguments.get("async_op", True))
        out: Any = None
        if functional:
            out = self._result(func, args, kwargs, tensors)
            got = got or ([out] if isinstance(out, torch.Tensor) else list(out))
        number = -1
        if name != "check_for_nan":
            number = self._note(operation, group, given, got, arguments, flat, asynchronous, functional)
        if functional:
            self._promise(name, out, args, tensors, number)
            return out
        self._answer(operation, arguments, given, got, group)
        if name in ("check_for_nan", "monitored_barrier_"):
            return None
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result([*tensors[:1], number])
        work = _create_work_from_future(done)
        work = work.boxed() if hasattr(work, "boxed") else work
        return work if len(func._schema.returns) == 1 else (args[0], work)

    @staticmethod
    def _result(func: Any, args: Any, kwargs: Mapping[str, Any], tensors: list[torch.Tensor]) -> Any:
        """What an operator makes that gives its result, to be waited for by `wait_tensor`."""
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return fake(func, args, kwargs)
        with _disable_current_modes():
            return func(*args, **kwargs)

    def _promise(self, name: str, out: Any, args: Any, tensors: list[torch.Tensor], number: int) -> None:
        """Remember what is to be waited for, and its value where it is known."""
        made = [out] if isinstance(out, torch.Tensor) else list(out)
        for tensor in made:
            self._issued[tensor.untyped_storage()._cdata] = number
            if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
                self._recorder.take(tensor, "communication")
        if len(made) == 1 and len(tensors) == 1 and isinstance(made[0], FakeTensor):
            _same_kind(made[0], tensors[0])
            value = twin_of(tensors[0]) if isinstance(tensors[0], FakeTensor) else tensors[0]
            if value is not None and is_small(value) and is_small(made[0]):
                with _disable_current_modes():
                    set_twin(made[0], self._as_if_alike(name, value, made[0], args))

    def _as_if_alike(self, name: str, value: torch.Tensor, out: torch.Tensor, args: Any) -> torch.Tensor | None:
        """The result where every member gives the same value."""
        size = len(self._known.get(str(args[-1]), ())) or self._world
        if name.startswith("all_reduce"):
            return value * size if "sum" in args else value.clone()
        if name.startswith("reduce_scatter"):
            part = value.flatten()[: out.numel()].reshape(tuple(out.shape))
            return part * size if "sum" in args else part.clone()
        if out.numel() % max(1, value.numel()) == 0:
            return value.flatten().repeat(out.numel() // max(1, value.numel())).reshape(tuple(out.shape))
        return None

    def _answer(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        given: Sequence[torch.Tensor],
        got: Sequence[torch.Tensor],
        group: Any,
    ) -> None:
        """Small values that the members hold afterwards, were they alike."""
        size = len(self._known[_name_of(group)])
        reduction = self._reduction(tuple(arguments.values()))
        with _disable_current_modes():
            if operation == "all_reduce" and reduction == "sum":
                for tensor in given:
                    value = _value(tensor)
                    if value is not None and value.dtype != torch.bool:
                        value.mul_(size)
            elif operation in ("all_gather", "all_to_all", "gather") and given and got:
                value = _value(given[0])
                for tensor in got:
                    if value is not None and value.numel() and tensor.numel() % value.numel() == 0 and is_small(tensor):
                        repeated = value.flatten().repeat(tensor.numel() // value.numel())
                        _assign(tensor, repeated.reshape(tuple(tensor.shape)).to(tensor.dtype))
                    else:
                        forget(tensor)
                    _same_kind(tensor, given[0])
            elif operation in ("reduce_scatter", "recv", "scatter"):
                for tensor in got:
                    forget(tensor)
                    if given and operation == "reduce_scatter":
                        _same_kind(tensor, given[0])

    def _note(
        self,
        operation: str,
        group: Any,
        given: Sequence[torch.Tensor],
        got: Sequence[torch.Tensor],
        arguments: Mapping[str, Any],
        flat: Sequence[Any],
        asynchronous: bool,
        waits_when_used: bool = False,
    ) -> int:
        peer = next(
            (arguments[key] for key in ("dst", "src", "root_rank") if isinstance(arguments.get(key), int)),
            -1,
        )
        name = self.remember(group)
        ranks = self._known[name]
        sizes = tuple(
            tuple(int(size) for size in arguments[key])
            for key in ("input_split_sizes", "output_split_sizes")
            if arguments.get(key)
        )
        lines, module = self._recorder.lines.here()
        number = self._recorder.issue(
            Collective(
                operation=operation,
                reduction=self._reduction(flat) if operation in _REDUCING else "",
                group=name,
                inputs=_forms(given),
                outputs=_forms(got),
                nbytes=max(sum(map(nbytes_of, given)), sum(map(nbytes_of, got))),
                peer=ranks[peer] if 0 <= peer < len(ranks) else -1,
                stream=self._recorder.stream,
                asynchronous=asynchronous,
                coalesced=self._batch,
                sizes=sizes,
                lines=lines,
                module=module,
                part=self._recorder.part,
                waits_when_used=waits_when_used,
            )
        )
        if torch._C._current_graph_task_id() != -1 and lines in (0, self._recorder.lines.backward):
            self._below_python.append(number)
        elif asynchronous and _caller() in _WAITING_BELOW_PYTHON:
            self._recorder.wait(number)
        return number

    def _batched_messages(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Sends and receives that are one operator."""
        operations, peers, _, tensors, group_name = args
        group = _resolve(group_name)
        with self.batch():
            for operation, peer, tensor in zip(operations, peers, tensors, strict=True):
                sends = "send" in operation
                given, got = ([tensor], []) if sends else ([], [tensor])
                self._note("send" if sends else "recv", group, given, got, {"dst": peer}, (), True)
        return fake(func, args, kwargs)

    def _sides(
        self, operation: str, func: Any, args: Any, kwargs: Mapping[str, Any], tensors: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Tensors that this rank gives and those that it gets."""
        if operation == "barrier":
            return [], []
        if operation == "send":
            return tensors, []
        if operation == "recv":
            return [], tensors
        if operation in _IN_PLACE:
            return tensors, tensors
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
        got = [value for key, one in named.items() if key.startswith(("out", "output")) for value in _flat(one)]
        given = [value for key, one in named.items() if key.startswith("input") for value in _flat(one)]
        return (given, got) if given or got else (tensors, [])

    def _group_of(self, flat: Sequence[Any]) -> Any:
        for value in flat:
            if isinstance(value, torch.ScriptObject):
                try:
                    return dist.ProcessGroup.unbox(value)
                except (RuntimeError, TypeError):
                    continue
            if isinstance(value, dist.ProcessGroup):
                return value
            if isinstance(value, str) and value not in _REDUCTIONS:
                try:
                    return _resolve(value)
                except (RuntimeError, LookupError, ValueError):
                    continue
        return dist.group.WORLD

    def _reduction(self, flat: Sequence[Any]) -> str:
        """The reduction of what runs: said by name, given to the group's method, or the sum that DDP asks for."""
        for value in flat:
            if isinstance(value, str) and value in _REDUCTIONS:
                return value
        return self._asked_reduction or "sum"

    def remember(self, group: Any) -> str:
        """The name of a group; its members are put into the record."""
        name = _name_of(group)
        if name not in self._known:
            ranks = tuple(dist.get_process_group_ranks(group))
            self._known[name] = ranks
            self._recorder.record.groups[name] = Group(
                name, ranks, str(getattr(group, "group_desc", "") or ""), max(0, self._asked - 1), 0
            )
        return name

    # -----------------------------------------------------------------------------------------------------------------
    # Waits

    def waited(self, work: Any) -> None:
        """`work.wait()` was called."""
        _, numbers = self._batch_works.pop(id(work), (None, range(0)))
        for number in numbers:
            self._recorder.wait(number)
        try:
            value = work.get_future().value()
        except RuntimeError:
            return
        if isinstance(value, list) and value and isinstance(value[-1], int) and value[-1] >= 0:
            self._recorder.wait(value[-1])

    def backward_ended(self) -> None:
        """DDP and its like wait below Python for what they issued in the backward, at its end."""
        self._recorder.wait_for_issued_below_python(self._below_python)
        self._below_python.clear()

    @contextmanager
    def batch(self) -> Any:
        """What is issued now is one batch."""
        if self._batch >= 0:
            yield
            return
        self._batch = self._batches
        self._batches += 1
        try:
            yield
        finally:
            self._batch = -1

    # -----------------------------------------------------------------------------------------------------------------
    # In place of torch.distributed

    def install(self) -> None:
        """Answer for torch.distributed from now on."""
        make_world, make_group, batch_messages = dist.init_process_group, c10d.new_group, dist.batch_isend_irecv
        coalescing = c10d._coalescing_manager
        get_backend = c10d.get_backend
        store = store_kind(self._recorder, self._world)

        def init_process_group(backend: Any = None, *_: Any, **others: Any) -> None:
            from torch.testing._internal.distributed import fake_pg  # registers the backend

            del fake_pg
            make_world("fake", store=store(), rank=self._rank, world_size=self._world)
            self._asked += 1
            self._backends[self.remember(dist.group.WORLD)] = _backend(backend)

        def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **others: Any) -> Any:
            members = tuple(range(self._world)) if ranks is None else tuple(int(rank) for rank in ranks)
            if not others.get("use_local_synchronization"):  # then its members alone make it
                self._recorder.record.made_groups.append((members, self._recorder.lines.stack()))
            kept = {key: others[key] for key in ("group_desc", "use_local_synchronization") if key in others}
            made = make_group(ranks, backend="fake", **kept)
            self._asked += 1
            if isinstance(made, dist.ProcessGroup):
                self._backends[self.remember(made)] = _backend(backend)
            return made

        def backend_of(group: Any = None) -> str:
            return self._backends.get(_name_of(group or dist.group.WORLD)) or str(get_backend(group))

        def batch_isend_irecv(messages: Any) -> Any:
            with self.batch():
                return batch_messages(messages)

        @contextmanager
        def coalescing_manager(*args: Any, **kwargs: Any) -> Any:
            first = len(self._recorder.record.collectives)
            with self.batch(), coalescing(*args, **kwargs) as manager:
                yield manager
            numbers = range(first, len(self._recorder.record.collectives))
            self._batch_works.update((id(work), (work, numbers)) for work in manager.works)

        replaced: dict[str, Any] = {
            "init_process_group": init_process_group,
            "new_group": new_group,
            "batch_isend_irecv": batch_isend_irecv,
            "_coalescing_manager": coalescing_manager,
            "get_backend": backend_of,
            "is_nccl_available": lambda: True,
            "is_gloo_available": lambda: True,
            "TCPStore": store,
            "FileStore": store,
        } | self._meeting.functions()
        for module in (dist, c10d, device_mesh):
            replace(module, **{name: value for name, value in replaced.items() if hasattr(module, name)})
        if not hasattr(dist, "set_timeout"):
            replace(dist, set_timeout=lambda *_, **__: self._recorder.note("set_timeout: of later releases of torch"))
        for name in _REDUCING_METHODS:
            if hasattr(dist.ProcessGroup, name):
                replace(dist.ProcessGroup, **{name: self._reading_reduction(getattr(dist.ProcessGroup, name))})
        for kind in (dist.Work, c10d_kinds.FakeWork):  # the second is what a batch ends with
            replace(kind, wait=self._noting_wait(kind.wait))
        for module in (dist, c10d):
            if not hasattr(module, "ProcessGroupNCCL"):
                options = type("Options", (), {"__init__": lambda self, *_, **__: None})
                replace(module, ProcessGroupNCCL=type("ProcessGroupNCCL", (), {"Options": options}))

    def _noting_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def noted(work: Any, *args: Any, **kwargs: Any) -> Any:
            self.waited(work)
            return wait(work, *args, **kwargs)

        return noted

    def _reading_reduction(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of process groups that notes with which reduction it was called."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            before = self._asked_reduction
            found = [name for value in (*args[1:], *kwargs.values()) if (name := _named_reduction(value))]
            self._asked_reduction = found[0] if found else "sum"
            try:
                return method(*args, **kwargs)
            finally:
                self._asked_reduction = before

        return noted


class Meeting:
    """Objects of Python between ranks.

    Args:
        request: which ranks are rehearsed side by side, and where they meet
        recorder: notes what is exchanged
    """

    def __init__(self, request: RankRequest, recorder: Recorder) -> None:
        self._rank = request.rank
        self._world = request.world
        self._together = frozenset(request.together)
        self._folder = Path(request.meeting)
        self._patience_s = request.patience_s
        self._stand_ins = request.stand_ins
        self._recorder = recorder
        self._counts: Counter[tuple[Any, ...]] = Counter()

    def functions(self) -> dict[str, Callable[..., Any]]:
        """In place of those of torch.distributed."""

        def all_gather_object(object_list: Any, obj: Any, group: Any = None) -> None:
            members = self._note("all_gather_object", group, -1)
            object_list[:] = self._gathered("all_gather", members, obj)

        def gather_object(
            obj: Any,
            object_gather_list: Any = None,
            dst: int | None = None,
            group: Any = None,
            group_dst: int | None = None,
        ) -> None:
            root = self._global(group, dst, group_dst)
            members = self._note("gather_object", group, root)
            found = self._gathered("gather", members, obj)
            if object_gather_list is not None and self._rank == root:
                object_gather_list[:] = found

        def broadcast_object_list(
            object_list: Any,
            src: int | None = None,
            group: Any = None,
            device: Any = None,
            group_src: int | None = None,
        ) -> None:
            root = self._global(group, src, group_src)
            members = self._note("broadcast_object", group, root)
            object_list[:] = self._from_root("broadcast", members, root, list(object_list))

        def scatter_object_list(
            scatter_object_output_list: Any,
            scatter_object_input_list: Any = None,
            src: int | None = None,
            group: Any = None,
            group_src: int | None = None,
        ) -> None:
            root = self._global(group, src, group_src)
            members = self._note("scatter_object", group, root)
            found = self._from_root("scatter", members, root, scatter_object_input_list)
            scatter_object_output_list[0] = found[members.index(self._rank)] if found else None

        def send_object_list(
            object_list: Any,
            dst: int | None = None,
            group: Any = None,
            device: Any = None,
            group_dst: int | None = None,
            **_: Any,
        ) -> None:
            peer = self._global(group, dst, group_dst)
            self._note("send_object", group, peer)
            self._put(("message", self._rank, peer), list(object_list))

        def recv_object_list(
            object_list: Any,
            src: int | None = None,
            group: Any = None,
            device: Any = None,
            group_src: int | None = None,
            **_: Any,
        ) -> int:
            peer = self._global(group, src, group_src)
            self._note("recv_object", group, peer)
            sender, receiver = self._stand_ins.get(peer, (peer, self._rank))
            object_list[:] = self._get(("message", sender, receiver), sender)
            return peer

        return {
            "all_gather_object": all_gather_object,
            "gather_object": gather_object,
            "broadcast_object_list": broadcast_object_list,
            "scatter_object_list": scatter_object_list,
            "send_object_list": send_object_list,
            "recv_object_list": recv_object_list,
        }

    def _members(self, group: Any) -> tuple[int, ...]:
        return tuple(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))

    def _global(self, group: Any, rank: int | None, in_group: int | None) -> int:
        if in_group is not None:
            return self._members(group)[in_group]
        return 0 if rank is None else rank

    def _note(self, operation: str, group: Any, peer: int) -> tuple[int, ...]:
        members = self._members(group)
        lines, module = self._recorder.lines.here()
        self._recorder.issue(
            Collective(
                operation,
                "",
                _name_of(group if group is not None else dist.group.WORLD),
                (),
                (),
                0,
                peer,
                self._recorder.stream,
                False,
                -1,
                (),
                lines,
                module,
                self._recorder.part,
            )
        )
        return members

    def _gathered(self, what: str, members: tuple[int, ...], given: Any) -> list[Any]:
        """Of each member its object; of those that are not rehearsed, this rank's own."""
        present = [rank for rank in members if rank in self._together]
        if len(present) < 2:
            return [given] * len(members)
        turn = self._turn((what, members))
        self._put((what, members, turn, self._rank), given, counted=False)
        found = {rank: self._get((what, members, turn, rank), rank, counted=False) for rank in present}
        return [found.get(rank, given) for rank in members]

    def _from_root(self, what: str, members: tuple[int, ...], root: int, given: Any) -> Any:
        """The root's object; where it is not rehearsed, this rank's own."""
        turn = self._turn((what, members, root))
        if root == self._rank:
            if len(self._together) > 1:
                self._put((what, members, root, turn), given, counted=False)
            return given
        if root not in self._together:
            self._recorder.invent("object of a rank that is not rehearsed", what, "this rank's own")
            return given
        return self._get((what, members, root, turn), root, counted=False)

    def _turn(self, key: tuple[Any, ...]) -> int:
        self._counts[key] += 1
        return self._counts[key]

    def _path(self, key: tuple[Any, ...], counted: bool) -> Path:
        parts = [*key, self._turn(("file", *key))] if counted else list(key)
        words = [f"{part[0]}+{len(part)}+{digest(part)}" if isinstance(part, tuple) else str(part) for part in parts]
        return self._folder / "-".join(words)

    def _put(self, key: tuple[Any, ...], value: Any, *, counted: bool = True) -> None:
        path = self._path(key, counted)
        unfinished = path.with_name(f"{path.name}.{self._rank}.unfinished")
        with _disable_current_modes():
            unfinished.write_bytes(pickle.dumps(value))
        unfinished.replace(path)

    def _get(self, key: tuple[Any, ...], peer: int, *, counted: bool = True) -> Any:
        path = self._path(key, counted)
        until = time.monotonic() + self._patience_s
        while not path.exists():
            has_ended = ending_of(self._folder, peer).exists()
            if path.exists():
                break
            if has_ended or time.monotonic() > until:
                raise TimeoutError(
                    f"rank {self._rank} waits for an object from rank {peer}, which "
                    + ("ended without sending one" if has_ended else f"did not send one within {self._patience_s:g} s")
                    + ("" if peer in self._together else "; that rank is not rehearsed: name it with --ranks")
                )
            time.sleep(0.01)
        with _disable_current_modes():
            return pickle.loads(path.read_bytes())  # noqa: S301  written by a rank of this rehearsal


def ending_of(folder: Path, rank: int) -> Path:
    """File in the folder where ranks meet that says that a rank has ended."""
    return folder / f"ended-{rank}"


c10d_kinds: Any = torch._C._distributed_c10d
_resolve: Any = c10d._resolve_process_group  # type: ignore[attr-defined]


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    return twin_of(tensor) if isinstance(tensor, FakeTensor) else tensor


def _assign(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor a value; what it is a view of has it too."""
    here = _value(tensor)
    if here is not None:
        here.copy_(value)
    else:
        set_twin(tensor, value)


def _same_kind(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """What kind of number a tensor is does not change on the way."""
    for name in ("_trimaran_hint", "_trimaran_truth"):
        if getattr(source, name, None) is not None:
            setattr(tensor, name, getattr(source, name))


def _caller() -> str:
    """File of what called the operator that runs."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_ON_THE_WAY) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename


def _name_of(group: Any) -> str:
    return str(getattr(group, "group_name", "") or "0")


def _backend(asked: Any) -> str:
    """What `get_backend` says of a group that was asked for so."""
    text = str(asked or "nccl").lower()
    if ":" in text:
        return dict(part.split(":", 1) for part in text.split(",")).get("cuda", "nccl")
    return text


def _forms(tensors: Sequence[torch.Tensor]) -> tuple[TensorForm, ...]:
    return tuple(form_of(tensor) for tensor in tensors)


def _flat(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_flatten(value)[0] if isinstance(one, torch.Tensor)]


def _named_reduction(value: Any) -> str:
    """What a reduction given to torch is called; "" where it is none."""
    operation = getattr(value, "reduceOp", value)
    text = str(getattr(operation, "op", operation)).lower().rsplit(".", 1)[-1]
    return text if text in _REDUCTIONS else ""
