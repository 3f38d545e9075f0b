"""Process groups without peers: what a rank asks of its group is noted, and answered as if every member did the same.

Groups are made on torch's own backend for such uses, so ranks, meshes and names are those of a real run. An operator of
a group comes to `RehearsedExchanges.run` with its group, reduction and tensors. Small values go along. Of a rank that
is rehearsed alone every member is taken to hold what this one holds: a sum is as many times the value, a gathered
tensor repeats it.

Ranks that are rehearsed side by side give each other their small values and their Python objects, through files in a
folder where they meet: a value is given when an operation is asked for, and taken when it is waited for. Of a rank that
is not rehearsed the value of the one that stands for it is taken, and this one's own object.
"""

import hashlib
import math
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.distributed.distributed_c10d as c10d
import torch.multiprocessing
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from trimaran.program.json_files import digest
from trimaran.rehearsal.calls import ASIDE, MESSAGES
from trimaran.rehearsal.device.replaced import replace, when_imported
from trimaran.rehearsal.gradients import Gradients
from trimaran.rehearsal.record import Collective, Group, Record, TensorForm
from trimaran.rehearsal.recorder import ScriptRecorder, form_of, nbytes_of
from trimaran.rehearsal.request import RankRequest
from trimaran.rehearsal.results import Given, results
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

_FROM_ONE_PIECE = {
    "allreduce_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_",
    "all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor",
    "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced", "all_to_all_single",
}  # fmt: skip
_INTO_ONE_PIECE = {"_allgather_base_", "reduce_scatter_", "_reduce_scatter_base_", "alltoall_base_"}
"""Operators whose given tensors, and those they write, must be contiguous: ProcessGroupNCCL.cpp and Functional.cpp of
torch. Of lists, and in messages, NCCL's process group takes bytes as they lie, and only warns."""

_REDUCING = {"all_reduce", "reduce_scatter", "reduce"}

_FROM_ROOT = {"broadcast", "scatter"}

_WAITING_BELOW_PYTHON = {
    str(Path(torch.__file__).parent / path)
    for path in ("nn/parallel/distributed.py", "distributed/utils.py", "distributed/_state_dict_utils.py")
}
"""Files that call functions below Python which issue and wait: broadcasts of DDP's state, buckets built anew."""

_KEEPING_REPLICAS = tuple(
    str(Path(torch.__file__).parent / path)
    for path in ("distributed/fsdp", "nn/parallel/distributed.py", "nn/modules/_functions.py")
)
"""Files that gather sharded parameters, send buffers and gather statistics of normalization in the forward."""

_CALLING_MODULES = nn.modules.module.__file__

_ON_THE_WAY = (
    str(Path(__file__).parents[1]),
    *(
        str(Path(torch.__file__).parent / path)
        for path in ("_dynamo", "_compile.py", "_ops.py", "utils/_python_dispatch")
    ),
)
"""Files between an operator and what called it."""

_WAYS_TO_WAIT = ("wait", "synchronize", "block_current_stream")
"""Of a work; on a device all three let the current stream wait."""

_WAYS_TO_END = ("poll", "wait", "terminate", "kill", "close")
"""Of a process: it has ended already, with status 0."""

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


class RehearsedExchanges:
    """Notes and answers the operators of process groups.

    Args:
        recorder: notes them
        request: which rank of how many this is
    """

    def __init__(self, recorder: ScriptRecorder, request: RankRequest) -> None:
        self._recorder = recorder
        self._rank = request.rank
        self._world = request.world
        self._meeting = ObjectMeeting(request, recorder)
        self._known: dict[str, tuple[int, ...]] = {}
        self._asked = 0
        self._batch = -1
        self._batches = 0
        self._issued: dict[int, int] = {}  # collective by the storage of what is waited for
        self._below_python: list[int] = []
        self._future_of: Callable[[Any], Any] = dist.Work.get_future
        self._batch_works: dict[int, tuple[Any, range]] = {}  # collectives that one work stands for, by its identity
        self._backends: dict[str, str] = {}
        self._asked_reduction = ""
        self._pending: dict[int, Callable[[], None]] = {}  # what is taken when a collective is waited for
        self._waited_below: set[int] = set()  # collectives whose waits happen where Python does not see them
        self.gradients = Gradients(recorder)

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
                self._arrive(number)
            return args[0]
        flat = tree_flatten((args, dict(kwargs)))[0]
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        group = self._group_of(flat)
        operation = _NAMES.get(name, "all_to_all" if "all_to_all" in name or "alltoall" in name else name)
        functional = func.namespace != "c10d"
        arguments = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | dict(kwargs)
        given, got = self._sides(operation, arguments, tensors)
        asynchronous = functional or (name != "monitored_barrier_" and bool(arguments.get("async_op", True)))
        out: Any = None
        if functional:
            out = self._result(func, args, kwargs, tensors)
            got = got or ([out] if isinstance(out, torch.Tensor) else list(out))
        if name == "check_for_nan":
            return None
        self._refuse_strided(
            name, group, given if name in _FROM_ONE_PIECE else (), got if name in _INTO_ONE_PIECE else ()
        )
        number = self._note(operation, group, given, got, arguments, flat, asynchronous, functional)
        if functional:
            made = [out] if isinstance(out, torch.Tensor) else list(out)
            self._promise(made, number)
            self._settle(number, given, made, arguments)
            return out
        self._settle(number, given, got, arguments)
        if name == "monitored_barrier_":
            return None
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result([*tensors[:1], _Number(number)])
        work = _create_work_from_future(done)
        work = work.boxed() if hasattr(work, "boxed") else work
        return work if len(func._schema.returns) == 1 else (args[0], work)

    def _refuse_strided(self, name: str, group: Any, *sides: Sequence[torch.Tensor]) -> None:
        """What NCCL's process group refuses; gloo's takes it.

        Raises:
            ValueError: a tensor on the device whose elements do not lie in one piece and in order
        """
        for tensor in (one for side in sides for one in side):
            order: Any = torch._prims_common.suggest_memory_format(tensor)
            is_refused = tensor.layout != torch.strided or not tensor.is_contiguous(memory_format=order)
            if is_refused and tensor.device.type == "cuda" and self._backends.get(_name_of(group), "nccl") == "nccl":
                raise ValueError(
                    f"Tensors must be contiguous: {name.strip('_')} was given one of shape {tuple(tensor.shape)} and "
                    f"strides {tuple(tensor.stride())}, which NCCL refuses; give it tensor.contiguous()"
                )

    @staticmethod
    def _result(func: Any, args: Any, kwargs: Mapping[str, Any], tensors: list[torch.Tensor]) -> Any:
        """What an operator makes that gives its result, to be waited for by `wait_tensor`."""
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return fake(func, args, kwargs)
        with _disable_current_modes():
            return func(*args, **kwargs)

    def _promise(self, made: Sequence[torch.Tensor], number: int) -> None:
        """Remember what is to be waited for."""
        for tensor in made:
            self._issued[tensor.untyped_storage()._cdata] = number
            if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
                self._recorder.take(tensor, "communication")

    # -----------------------------------------------------------------------------------------------------------------
    # Values

    def _settle(
        self, number: int, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor], arguments: Mapping[str, Any]
    ) -> None:
        """Small values that the members hold afterwards: now, or when the operation is waited for."""
        asked = self._recorder.record.collectives[number]
        if asked.operation == "barrier":
            if not asked.asynchronous:
                self._meeting.join(self._recorder.record.groups[asked.group].ranks)
            return
        ranks = self._recorder.record.groups[asked.group].ranks
        self._join_by_activations(number, ranks, given, got)
        self.gradients.exchanged(given, got, asked.group, len(ranks))
        made = [tensor for tensor in got if not any(tensor is one for one in given)]
        if given:
            for tensor in made:
                _same_kind(tensor, given[0])
        own = _given(given, tuple(int(size) for size in arguments.get("input_split_sizes") or ()))
        # What is asked for below Python is torch's own, such as the order of DDP's buckets, and the same on all ranks.
        below = number in self._waited_below or number in self._below_python
        small = not below and all(map(is_small, (*given, *got)))
        if asked.operation in MESSAGES:
            for tensor in got:
                forget(tensor)
            if small and self._meeting.meets((asked.peer,)):
                if given:
                    self._meeting.tell(("tensors", self._rank, asked.peer), own)
                else:
                    self._pending[number] = self._message(got, asked.peer)
        elif small and len(ranks) > 1 and self._meeting.meets(ranks):
            values = "values" + _aside()
            turn = self._meeting.turn((values, ranks))
            self._meeting.tell((values, ranks, turn, self._rank), (_wanted(asked), own), counted=False)
            self._pending[number] = lambda: self._take(asked, (values, ranks, turn), own, got)
            for tensor in made:
                forget(tensor)
        else:
            self._hold(asked, ranks, [own] * len(ranks), got)
        if not asked.asynchronous:
            self._arrive(number)

    def _join_by_activations(
        self, number: int, ranks: tuple[int, ...], given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]
    ) -> None:
        """Ranks that give each other activations or messages until the first step may hold one model together."""
        record = self._recorder.record
        asked = record.collectives[number]
        if self._recorder.steps or len(ranks) < 2 or sum(tensor.numel() for tensor in (*given, *got)) <= _MOST_LOGGED:
            return
        of_forward = asked.part == "forward" and not self.gradients.any_of(given) and not _is_of_replicas()
        if asked.operation in MESSAGES or of_forward:
            record.joined.append(number)

    def _message(self, got: Sequence[torch.Tensor], peer: int) -> Callable[[], None]:
        """What takes the values that another rank sends."""
        sender, receiver = self._meeting.ends_of_message(peer)
        key = ("tensors", sender, receiver)
        place = self._meeting.turn(("file", *key))

        def take() -> None:
            sent = self._meeting.hear((*key, place), sender)
            if isinstance(sent, Given):
                with _disable_current_modes():
                    for tensor, value in zip(got, sent.values, strict=False):
                        _assign(tensor, value)

        return take

    def _take(
        self, asked: Collective, key: tuple[str, tuple[int, ...], int], own: Given, got: Sequence[torch.Tensor]
    ) -> None:
        """Take what the other members gave."""
        ranks, from_root = key[1], asked.operation in _FROM_ROOT
        if not got or (not own.is_known and not from_root):
            self._hold(asked, ranks, [own] * len(ranks), got)
            return
        needs = (asked.peer,) if from_root else ranks
        found = {self._rank: own}
        for rank in self._meeting.present(needs):
            if rank == self._rank:
                continue
            told = None if ranks in self._meeting.alone else self._meeting.hear((*key, rank), rank)
            if told is None or told[0] != _wanted(asked):
                self._meeting.alone.add(ranks)
                self._recorder.invent("values of ranks that do not come", asked.operation, "those of this rank")
                break
            found[rank] = told[1]
        members = [found.get(rank) or found.get(self._meeting.like(rank)) or own for rank in ranks]
        absent = any(rank not in self._meeting.present(needs) for rank in needs)
        if absent and len({_digest(one) for one in found.values()}) > 1:
            self._recorder.invent("values of ranks that are not rehearsed", asked.operation, "those of ranks like them")
        self._hold(asked, ranks, members, got)

    def _hold(
        self, asked: Collective, ranks: tuple[int, ...], members: Sequence[Given], got: Sequence[torch.Tensor]
    ) -> None:
        """Give results the values that follow from those of all members."""
        member = ranks.index(self._rank) if self._rank in ranks else 0
        root = ranks.index(asked.peer) if asked.peer in ranks else -1
        with _disable_current_modes():
            made = results(asked.operation, asked.reduction, members, member, root, len(got))
            for tensor, value in zip(got, made, strict=False):
                _assign(tensor, value)

    def _arrive(self, number: int) -> None:
        """A collective is waited for: its results have their values."""
        take = self._pending.pop(number, None)
        if take is not None:
            take()

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
        if (
            len(ranks) > 1
            and (on := next((one for one in (*given, *got) if one.device.type == "cuda"), None)) is not None
        ):
            self._recorder.places(on.device.index or 0, on)
        on_host = all(one.device.type == "cpu" for one in (*given, *got))
        lines, module = self._recorder.lines.here()
        number = self._recorder.issue(
            Collective(
                operation=operation,
                reduction=self._reduction(flat) if operation in _REDUCING else "",
                group=_as_asked(self._recorder.record, name) if on_host else name,
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
                value=_digest(_given(given)) if all(map(is_small, given)) else "",
            )
        )
        if torch._C._current_graph_task_id() != -1 and lines in (0, self._recorder.lines.backward):
            self._below_python.append(number)
        elif asynchronous and _caller() in _WAITING_BELOW_PYTHON:
            self._recorder.wait(number)
            self._waited_below.add(number)
        return number

    @staticmethod
    def _sides(
        operation: str, arguments: Mapping[str, Any], tensors: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Tensors that this rank gives and those that it gets."""
        if operation == "barrier":
            return [], []
        if operation == "send" or operation == "recv" or operation in _IN_PLACE:
            return tensors if operation != "recv" else [], tensors if operation != "send" else []
        got = [value for key, one in arguments.items() if key.startswith("out") for value in _flat(one)]
        given = [value for key, one in arguments.items() if key.startswith("input") for value in _flat(one)]
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
            self._arrive(number)
        with suppress(RuntimeError):
            self._waited_for(self._future_of(work))

    def _waited_for(self, future: Any) -> None:
        for number in _numbers_of(future):
            self._recorder.wait(number)
            self._arrive(number)

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
            default = "undefined" if others.get("device_id") is None else "nccl"  # as torch says it
            self._backends[self.remember(dist.group.WORLD)] = str(backend or default).lower()

        def new_group(
            ranks: Any = None,
            timeout: Any = None,
            backend: Any = None,
            pg_options: Any = None,
            use_local_synchronization: bool = False,
            group_desc: Any = None,
            *_: Any,
            **__: Any,
        ) -> Any:
            members = tuple(range(self._world)) if ranks is None else tuple(int(rank) for rank in ranks)
            if not use_local_synchronization:  # then its members alone make it
                self._recorder.record.made_groups.append((members, self._recorder.lines.stack()))
            made = make_group(
                ranks,
                backend="fake",
                use_local_synchronization=use_local_synchronization,
                group_desc=group_desc,
            )
            self._asked += 1
            if isinstance(made, dist.ProcessGroup):
                self._backends[self.remember(made)] = str(backend or backend_of()).lower()
            return made

        def split_group(
            parent_pg: Any = None, split_ranks: Any = None, *_: Any, group_desc: Any = None, **others: Any
        ) -> Any:
            if not split_ranks or not all(split_ranks):
                raise ValueError("split_ranks cannot be None or empty")
            parent = parent_pg or dist.group.WORLD
            every = dist.get_process_group_ranks(parent)
            own = None
            for members in ([every[place] for place in sorted(places)] for places in split_ranks):
                self._recorder.record.made_groups.append((tuple(members), self._recorder.lines.stack()))
                if self._rank in members:
                    own = make_group(members, backend="fake", use_local_synchronization=True, group_desc=group_desc)
            self._asked += len(split_ranks)
            if own is not None:
                self._backends[self.remember(own)] = str(others.get("backend") or backend_of(parent)).lower()
            return own

        def backend_of(group: Any = None) -> str:
            return self._backends.get(_name_of(group or dist.group.WORLD)) or str(get_backend(group))

        def batch_isend_irecv(p2p_op_list: Any) -> Any:
            with self.batch():
                return batch_messages(p2p_op_list)

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
            "split_group": split_group,
            "batch_isend_irecv": batch_isend_irecv,
            "_coalescing_manager": coalescing_manager,
            "get_backend": backend_of,
            "is_nccl_available": lambda: True,
            "is_gloo_available": lambda: True,
            "TCPStore": store,
            "FileStore": store,
        } | self._meeting.functions()
        for module in (dist, c10d, device_mesh, sys.modules["torch.distributed.rendezvous"]):
            replace(module, **{name: value for name, value in replaced.items() if hasattr(module, name)})
        if not hasattr(dist, "set_timeout"):
            replace(dist, set_timeout=lambda *_, **__: self._recorder.note("set_timeout: of later releases of torch"))
        for name in _REDUCING_METHODS:
            if hasattr(dist.ProcessGroup, name):
                replace(dist.ProcessGroup, **{name: self._reading_reduction(getattr(dist.ProcessGroup, name))})
        for kind in (dist.Work, c10d_kinds.FakeWork):  # the second is what a batch ends with
            noted = self._after(self.waited, kind.wait)
            replace(kind, **{name: noted for name in _WAYS_TO_WAIT if hasattr(kind, name)})
        self._futures()
        when_imported("torch.distributed.rpc", _refusing(_NO_REMOTE_CALLS, "init_rpc"))
        when_imported("torch.distributed._symmetric_memory", _refusing(_NO_SHARED_MEMORY, "empty", "rendezvous"))
        processes: Any = torch.multiprocessing
        replace(processes, spawn=self._in_place_of_spawned(processes.spawn))
        replace(BaseProcess, start=self._in_place_of_started(BaseProcess.start))
        for module in (dist, c10d):
            if not hasattr(module, "ProcessGroupNCCL"):
                options = type("Options", (), {"__init__": lambda self, *_, **__: None})
                replace(module, ProcessGroupNCCL=type("ProcessGroupNCCL", (), {"Options": options}))

    def _in_place_of_spawned(self, spawn: Callable[..., Any]) -> Callable[..., Any]:
        """A script that starts its ranks by itself: what it starts for this rank runs here."""

        def run(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *others: Any, **kwargs: Any) -> Any:
            devices = torch.cuda.device_count()
            if nprocs not in (self._world, devices):
                return spawn(fn, args, nprocs, join, *others, **kwargs)
            if self._world != nprocs:
                raise NotImplementedError(
                    f"torch.multiprocessing.spawn starts {nprocs} processes in each of {self._world} ranks: "
                    f"start one process a rank, as torchrun does, or rehearse with --world {devices}"
                )
            self._recorder.note("torch.multiprocessing.spawn: of the processes that it starts, this rank's runs")
            fn(self._rank, *args)
            return None if join else SimpleNamespace(join=lambda *_, **__: True)

        return run

    def _in_place_of_started(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Processes that are started one by one, each told its rank first and then how many there are.

        That of this rank runs here; the others have ended at once.
        """
        begun = []  # by this rank, in which its own one makes groups

        def run(process: Any) -> None:
            given = [*process._args, *process._kwargs.values()]
            numbers = [each for each in given if type(each) is int]
            is_rank = bool(numbers) and type(given[0]) is int and self._world in numbers[1:]
            is_loader = str(getattr(process._target, "__module__", "")).startswith("torch.")
            if not is_rank or is_loader or (dist.is_initialized() and process._target not in begun):
                start(process)
                return
            begun.append(process._target)
            process._popen = SimpleNamespace(pid=None, **dict.fromkeys(_WAYS_TO_END, lambda *_: 0))
            if given[0] == self._rank:
                self._recorder.note("multiprocessing: of the processes that it starts for ranks, this rank's runs")
                process.run()

        return run

    @staticmethod
    def _after(first: Callable[[Any], None], method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that is called once something was done with its object."""

        def called(own: Any, *args: Any, **kwargs: Any) -> Any:
            first(own)
            return method(own, *args, **kwargs)

        return called

    def _futures(self) -> None:
        """A call is waited for by `wait`, by what comes `then`, or, of a hook of DDP, at the end of the backward."""
        future_of = dist.Work.get_future

        def get_future(work: Any) -> Any:
            future = future_of(work)
            if torch._C._current_graph_task_id() != -1:
                self._below_python.extend(_numbers_of(future))
            return future

        def followed(future: Any) -> None:
            if torch._C._current_graph_task_id() == -1:
                self._waited_for(future)

        make = torch.futures.Future.__init__

        def make_future(future: Any, *, devices: Any = None) -> None:
            """Of no devices: what it is given is on none."""
            make(future)

        replace(torch.futures.Future, __init__=make_future)
        self._future_of, future = future_of, torch._C.Future
        replace(dist.Work, get_future=get_future)
        other = {name: self._after(followed, getattr(future, name)) for name in ("then", "add_done_callback")}
        replace(future, wait=self._after(self._waited_for, future.wait), **other)

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


class _Number(int):
    """Of a call in the record, in the future of its work."""


def _numbers_of(future: Any) -> Iterator[int]:
    """The calls whose future this is, alone or of several that are collected into one."""
    value = future.value() if future.done() else None
    for one in value if isinstance(value, list) else ():
        if isinstance(one, _Number):
            yield int(one)
        elif isinstance(one, torch._C.Future):
            yield from _numbers_of(one)


class ObjectMeeting:
    """Objects of Python between ranks.

    Args:
        request: which ranks are rehearsed side by side, and where they meet
        recorder: notes what is exchanged
    """

    def __init__(self, request: RankRequest, recorder: ScriptRecorder) -> None:
        self._request, self._rank, self._folder = request, request.rank, Path(request.meeting)
        self._together = frozenset(request.together)
        self.alone: set[tuple[int, ...]] = set()  # groups of which some members do not come
        self._recorder = recorder
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._waits = 0

    # -----------------------------------------------------------------------------------------------------------------
    # Values

    def meets(self, ranks: Sequence[int]) -> bool:
        """Whether another one of these is rehearsed side by side with this one, or stood in for."""
        return len(self._together) > 1 and any(
            (rank in self._together and rank != self._rank) or rank in self._request.stand_ins for rank in ranks
        )

    def present(self, ranks: Sequence[int]) -> list[int]:
        """Those of these that are rehearsed side by side with this one."""
        return [rank for rank in ranks if rank in self._together]

    def like(self, rank: int) -> int:
        """The rehearsed rank that stands for another one; itself where nothing is known of it."""
        return self._request.like.get(rank, rank)

    def ends_of_message(self, peer: int) -> tuple[int, int]:
        """Sender and receiver of what this rank receives from another one."""
        return self._request.stand_ins.get(peer, (peer, self._rank))

    def turn(self, key: tuple[Any, ...]) -> int:
        """How often something was asked for, this time included."""
        self._counts[key] += 1
        return self._counts[key]

    def tell(self, key: tuple[Any, ...], value: Any, *, counted: bool = True) -> None:
        """Give a value to whoever asks for it."""
        path = self._path(key, counted)
        unfinished = path.with_name(f"{path.name}.{self._rank}.unfinished")
        unfinished.write_bytes(self._packed(value))
        unfinished.replace(path)

    def join(self, ranks: tuple[int, ...]) -> None:
        """Wait for the members that run at the same time: they look for files and folders before and after."""
        others = (self._together | {*self._request.at_barriers}).intersection(ranks) - {self._rank}
        if not others or ranks in self.alone:
            return
        key = ("barrier", ranks, self.turn(("barrier", ranks)))
        self.tell((*key, self._rank), True, counted=False)
        for rank in others:
            path = self._path((*key, rank), counted=False)
            if not self._comes(path, rank, stops=True, patience_s=self._request.most_seconds):
                self.alone.add(ranks)
                return

    def hear(self, key: tuple[Any, ...], peer: int) -> Any:
        """What another rank gave; None where it never does."""
        path = self._path(key, counted=False)
        if not self._comes(path, peer, stops=True):
            return None
        return self._unpacked(path.read_bytes())

    # -----------------------------------------------------------------------------------------------------------------
    # Objects

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
            self.tell(("message", self._rank, peer), list(object_list))

        def recv_object_list(
            object_list: Any,
            src: int | None = None,
            group: Any = None,
            device: Any = None,
            group_src: int | None = None,
            **_: Any,
        ) -> int:
            peer = self._global(group, src, group_src)
            members = self._note("recv_object", group, peer)
            sender, receiver = self._request.stand_ins.get(peer, (peer, self._rank))
            object_list[:] = self._get(("message", sender, receiver), sender, members)
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
        name = _name_of(group if group is not None else dist.group.WORLD)
        if len(members) > 1 and "gloo" not in c10d.get_backend(group):  # it has them on the host
            self._recorder.places(torch.cuda.current_device())
        self._recorder.issue(
            Collective(
                operation,
                "",
                _as_asked(self._recorder.record, name),
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
        if len(self._together) < 2 and operation not in ("send_object", "recv_object") and not _aside():
            self.join(members)
        return members

    def _gathered(self, what: str, members: tuple[int, ...], given: Any) -> list[Any]:
        """Of each member its object; of those that are not rehearsed, that of the one like it, else this rank's own.

        Each is an object for itself, as where it comes over a network, but where that would fill this machine.
        """
        present = [rank for rank in members if rank in self._together]
        own = self._packed(given)
        packed = {self._rank: own}
        if len(present) > 1:
            key = (what + _aside(), members)
            turn = self.turn(key)
            self.tell((*key, turn, self._rank), given, counted=False)
            packed |= {rank: self._sent((*key, turn, rank), rank, members, counted=False) for rank in present}
        if len(packed) < len(members):
            whose = "those of ranks like them" if len(present) > 1 else "this rank's own"
            self._recorder.invent("objects of ranks that are not rehearsed", what, whose)
        taken = [packed.get(rank) or packed.get(self.like(rank)) or own for rank in members]
        if sum(map(len, taken)) > _MOST_COPIED_BYTES:
            once = {one: self._unpacked(one) for one in set(taken)}
            return [once[one] for one in taken]
        return [self._unpacked(one) for one in taken]

    def _from_root(self, what: str, members: tuple[int, ...], root: int, given: Any) -> Any:
        """The root's object; where it is not rehearsed, this rank's own."""
        key = (what + _aside(), members, root)
        turn = self.turn(key)
        if root == self._rank:
            if len(self._together) > 1:
                self.tell((*key, turn), given, counted=False)
            return given
        if root not in self._together and given is not None:
            self._recorder.invent("object of a rank that is not rehearsed", what, "this rank's own")
            return given
        return self._get((*key, turn), root, members, counted=False)

    def _path(self, key: tuple[Any, ...], counted: bool) -> Path:
        parts = [*key, self.turn(("file", *key))] if counted else list(key)
        words = [f"{part[0]}+{len(part)}+{digest(part)}" if isinstance(part, tuple) else str(part) for part in parts]
        return self._folder / "-".join(words)

    @staticmethod
    def _packed(value: Any) -> bytes:
        with _disable_current_modes():
            return pickle.dumps(value)

    @staticmethod
    def _unpacked(packed: bytes) -> Any:
        with _disable_current_modes():
            return pickle.loads(packed)  # noqa: S301  written by a rank of this rehearsal

    def _get(self, key: tuple[Any, ...], peer: int, members: tuple[int, ...], *, counted: bool = True) -> Any:
        return self._unpacked(self._sent(key, peer, members, counted=counted))

    def _sent(self, key: tuple[Any, ...], peer: int, members: tuple[int, ...], *, counted: bool) -> bytes:
        path = self._path(key, counted)
        if not self._comes(path, peer, stops=False):
            has_ended, patience_s = self._request.ending_of(peer).exists(), self._request.patience_s
            raise TimeoutError(
                f"rank {self._rank} waits for an object from rank {peer}, which "
                + ("ended without sending one" if has_ended else f"did not send one within {patience_s:g} s")
                + ("" if peer in self._together else f"; that rank is not rehearsed: {_named(members)}")
            )
        return path.read_bytes()

    def _comes(self, path: Path, peer: int, *, stops: bool, patience_s: float | None = None) -> bool:
        """Wait until a file is there; whether it is.

        Args:
            path: of the file
            peer: that writes it
            stops: whether to stop where ranks wait for each other in a circle
            patience_s: how long; None: as for objects [s]
        """
        began = time.monotonic()
        until = began + (self._request.patience_s if patience_s is None else patience_s)
        said = self._folder / f"waits-{self._rank}"
        circle: tuple[str, ...] = ()
        since = began
        try:
            while not path.exists():
                has_ended = self._request.ending_of(peer).exists()
                if path.exists():
                    return True
                now = time.monotonic()
                is_absent = len(self._together) > 1 and peer not in self._together  # one alone does not know of others
                if has_ended or now > until or is_absent:
                    return False
                if now > began + _BRIEF_S and not said.exists():
                    self._waits += 1
                    unfinished = said.with_name(f"{said.name}.unfinished")
                    unfinished.write_text(f"{peer} {self._waits}")
                    unfinished.replace(said)
                if stops and said.exists():
                    found = self._circle(peer)
                    if found != circle:
                        circle, since = found, now
                    if circle and now > since + _CIRCLE_S:
                        return False
                time.sleep(0.01)
            return True
        finally:
            said.unlink(missing_ok=True)

    def _circle(self, peer: int) -> tuple[str, ...]:
        """Who waits for whom, from another rank on, where that comes back to one of them; empty where one goes on."""
        seen: dict[int, str] = {}
        while peer not in seen and peer != self._rank:
            try:
                seen[peer] = (self._folder / f"waits-{peer}").read_text()
                peer = int(seen[peer].split()[0])
            except (OSError, ValueError, IndexError):
                return ()
        return (f"{self._waits}", *seen.values())


_MOST_COPIED_BYTES = 2**26
"""Of gathered objects of which each is one for itself [bytes]."""

_MOST_LOGGED = 64
"""Numbers that ranks give each other to be logged, and no activations."""

_MOST_NAMED = 32
"""Members of a group that are listed."""

_BRIEF_S = 0.2
"""A wait that is not said to others [s]."""

_CIRCLE_S = 3.0
"""How long the same ranks wait for each other until nobody waits any longer [s]."""


_LAST = 1_000_000
"""Added to the place of a group whose calls come from another thread: after those that all ranks make in one order."""


def _aside() -> str:
    """`ASIDE` in a thread that the script has started, as for a checkpoint in the background; "" in any other one."""
    here = threading.current_thread()
    apart = here is not threading.main_thread() and not isinstance(here, threading._DummyThread)  # autograd's
    return ASIDE if apart else ""


def _as_asked(record: Record, name: str) -> str:
    """The name of a group for what this thread asks of the host; that of a thread apart is put into the record."""
    own = record.groups.get(name)
    if own is None or not _aside():
        return name
    apart = name + ASIDE
    record.groups.setdefault(apart, Group(apart, own.ranks, own.description, own.order + _LAST, 0))
    return apart


def _named(members: Sequence[int]) -> str:
    """How members of a group that exchange objects are rehearsed together."""
    if len(members) > _MOST_NAMED:
        return "name it with --ranks"
    return f"name its group, --ranks {','.join(map(str, members))}"


c10d_kinds: Any = torch._C._distributed_c10d
_resolve: Any = c10d._resolve_process_group  # type: ignore[attr-defined]


def _refusing(text: str, *names: str) -> Callable[[Any], None]:
    """What lets functions of a module raise, as they are not rehearsed."""

    def refused(*_: Any, **__: Any) -> None:
        raise NotImplementedError(text)

    return lambda module: replace(module, **dict.fromkeys(names, refused))


_NO_REMOTE_CALLS = (
    "torch.distributed.rpc is not rehearsed: what it calls runs on ranks that are not there; "
    "take collectives or messages"
)
_NO_SHARED_MEMORY = (
    "torch.distributed._symmetric_memory is not rehearsed: its kernels read the memory of ranks that are not "
    "there; take collectives, or torch.compile with _micro_pipeline_tp, which is rehearsed without"
)


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    return twin_of(tensor) if isinstance(tensor, FakeTensor) else tensor


def _assign(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    """Give a tensor a value; what it is a view of has it too. None: its value is not known any more."""
    if value is None or value.numel() != tensor.numel():
        forget(tensor)
        return
    shaped = value.reshape(tuple(tensor.shape)).to(tensor.dtype)
    here = _value(tensor)
    if here is not None:
        here.copy_(shaped)
    elif is_small(tensor):
        set_twin(tensor, shaped.clone())


def _wanted(asked: Collective) -> tuple[Any, ...]:
    """What members have in common where they ask for one collective: values of another one are not taken."""
    dtypes = {form.dtype for form in (*asked.inputs, *asked.outputs)}
    elements = tuple(math.prod(form.shape) for form in asked.inputs) if asked.operation in _IN_PLACE else ()
    return asked.operation, sorted(dtypes), elements


def _given(tensors: Sequence[torch.Tensor], rows: tuple[int, ...] = ()) -> Given:
    """Values of tensors as they are now."""
    with _disable_current_modes():
        values = [_value(tensor) for tensor in tensors]
        return Given(tuple(None if value is None else value.detach().clone() for value in values), rows)


def _digest(given: Given) -> str:
    """Of values; "" where there is none, or one that is not known."""
    if not given.values or not given.is_known:
        return ""
    mixed = hashlib.blake2b(digest_size=8)
    with _disable_current_modes():
        for value in given.values:
            if value is not None:
                mixed.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return mixed.hexdigest()


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


def _is_of_replicas() -> bool:
    """Whether torch asks, for parameters or statistics of modules that it keeps alike or whole on all ranks."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != _CALLING_MODULES:
        if frame.f_code.co_filename.startswith(_KEEPING_REPLICAS):
            return True
        frame = frame.f_back
    return False


def _name_of(group: Any) -> str:
    return str(getattr(group, "group_name", "") or "0")


def _forms(tensors: Sequence[torch.Tensor]) -> tuple[TensorForm, ...]:
    return tuple(form_of(tensor) for tensor in tensors)


def _flat(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_flatten(value)[0] if isinstance(one, torch.Tensor)]


def _named_reduction(value: Any) -> str:
    """What a reduction given to torch is called; "" where it is none."""
    operation = getattr(value, "reduceOp", value)
    text = str(getattr(operation, "op", operation)).lower().rsplit(".", 1)[-1]
    return text if text in _REDUCTIONS else ""
