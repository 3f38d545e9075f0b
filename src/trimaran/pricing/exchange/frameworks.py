"""How frameworks exchange gradients: buckets of a call, the moment when it may start, its cost besides bytes.

A recipe is a fact about software, read in its source or its documentation; the costs of calls are fitted to published
step times. `pricing.collectives` prices bytes on the machine's links.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_toml
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.exchange.unknowns import (
    COPY_S,
    HOST_SUM_BYTES_PER_S,
    INTERFERENCE,
    LAUNCH_S,
    OPERATION_S,
    End,
    Unknown,
)
from trimaran.pricing.kernels.software import Software

# ---------------------------------------------------------------------------------------------------------------------
# Constants of exchanges that no source code says: fitted by benchmarks/fits/exchange.py to published steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConstants:
    """Cost of a group in a step, besides its calls.

    Attributes:
        tensor_s: handling of a tensor: a hook, its place in a buffer and out of it [s]
        cycles_step_s: handling of a step where calls start in cycles that all ranks agree on [s]
        straggling: waits for the slowest of a group, as a share of the step
        straggling_growth: of that with each doubling of the devices, as a share of the step
        node_straggling: of that with each doubling of the nodes, as a share of the step
        horovod_call_s: a call of Horovod: all ranks agree on what is complete [s]
        tuned_call_s: the same with cycles of 0.1 ms [s]
        tf_host_bytes_per_s: at which TensorFlow sums and updates in a host's memory, by all cores [bytes/s]
        length_spread: where batches hold sentences of different lengths: standard deviation of a batch's work by its
            mean
        mxnet_copies: where MXNet's copies are between their ends, as `ExchangeRecipe.bytes_place` has it; its
            collectives of NCCL are as far from their slow end
        mxnet_calls: where its calls are between their ends
        ends: 5 and 95 % of the same fit to draws of as many networks, by name
    """

    tensor_s: float
    cycles_step_s: float
    straggling: float
    straggling_growth: float
    node_straggling: float
    horovod_call_s: float
    tuned_call_s: float
    tf_host_bytes_per_s: float
    length_spread: float
    mxnet_copies: float
    mxnet_calls: float
    ends: Mapping[str, tuple[float, float]]

    def fitted(self, name: str, *, rate: bool = False) -> Unknown:
        """A constant with its ends.

        Args:
            name: of the constant
            rate: the larger end is the fast one
        """
        value = float(getattr(self, name))
        low, high = min(value, *self.ends[name]), max(value, *self.ends[name])
        source = "fitted to published steps by benchmarks/fits/exchange.py"
        return Unknown(value, high if rate else low, low if rate else high, source)


@functools.cache
def exchange_constants() -> ExchangeConstants:
    """The constants as fitted."""
    found = packaged_toml("trimaran.pricing", "exchange_constants.toml")
    ends = {name: (float(low), float(high)) for name, (low, high) in found["ends"].items()}
    return ExchangeConstants(**{name: float(value) for name, value in found.items() if name != "ends"}, ends=ends)


_MIB = 1 << 20
_HOROVOD_21 = 2021.0
"""When containers and packages had taken over the release of November 2020."""


_CALL_S = Unknown(OPERATION_S.slow, OPERATION_S.fast, OPERATION_S.slow, OPERATION_S.source)
"""A call of NCCL by a framework: an operation of its engine, as measured of PyTorch on a V100 [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecipe:
    """How a framework exchanges gradients.

    Attributes:
        name: by which it is asked for
        first_bytes: a first call is full at this size, so that something is under way early [bytes]
        bucket_bytes: later calls are full at this size; 0: one call for each tensor [bytes]
        keys: tensors of a call at most; 0: any number
        cycle_s: calls start at multiples of this time with the gradients complete by then; 0: as soon as they are full
        overlaps: calls may overlap the backward
        surely_overlaps: they do; else the source code lets them, and nobody has measured whether they do
        call_s: handling of a call: negotiation, launch, synchronization of streams [s]
        device_s: of a call, where one process serves all devices of a node: for each of these [s]
        copy_s: handling of a copy, where tensors are copied to an owner and back [s]
        host_bytes_per_s: at which a host's cores read and write what they sum and update [bytes/s]
        tensor_s: handling of a tensor: a hook, copies into a buffer and out of it [s]
        step_s: handling of a step, whatever is exchanged in it [s]
        passes: how often a gradient is read or written besides the exchange, for those copies
        collectives: of one exchange of a call, by their names in `pricing.collectives`
        bytes_place: where the time of its bytes (of its collectives, or of copies staged in a host's memory) is between
            the ends of what is known, from 0 at the fast one to 1 at the slow one; None: at its value
        interference: factor on the time of compute while a call runs
        owners_update: a tensor is updated by the rank that owns it alone
        host_updates: with a tensor of more elements than this every device updates, not the host of the one node; 0:
            the host does
        unknowns: fields of this that nobody has measured, each with its ends
        source: where this comes from
    """

    name: str
    first_bytes: int = 0
    bucket_bytes: int = 0
    keys: int = 0
    cycle_s: float = 0.0
    overlaps: bool = True
    surely_overlaps: bool = True
    call_s: float = OPERATION_S.slow
    device_s: float = 0.0
    copy_s: float = 0.0
    host_bytes_per_s: float = HOST_SUM_BYTES_PER_S.value
    tensor_s: float = 0.0
    step_s: float = 0.0
    passes: int = 0
    collectives: tuple[str, ...] = ("all_reduce",)
    bytes_place: float | None = None
    interference: float = INTERFERENCE.value
    owners_update: bool = False
    host_updates: int = 0
    unknowns: tuple[tuple[str, Unknown], ...] = (("call_s", _CALL_S), ("interference", INTERFERENCE))
    source: str

    def at(self, end: End) -> "ExchangeRecipe":
        """This with all that nobody has measured at an end.

        Example:
            >>> KVSTORE_NCCL.at("slow").overlaps, KVSTORE_NCCL.at("typical") == KVSTORE_NCCL
            (False, True)
        """
        if end == "typical":
            return self
        found: dict[str, Any] = {name: unknown.at(end) for name, unknown in self.unknowns}
        return replace(self, overlaps=self.overlaps and (end == "fast" or self.surely_overlaps), **found)

    def on(self, devices: int) -> "ExchangeRecipe":
        """This on a node, with what one process does for all its devices in the time of a call.

        Args:
            devices: of the group in a node
        """
        return replace(self, call_s=self.call_s + self.device_s * devices) if self.device_s else self


_KNOWN = exchange_constants()
_TENSOR_S = _KNOWN.tensor_s
_HOROVOD_S, _TUNED_S = _KNOWN.fitted("horovod_call_s"), _KNOWN.fitted("tuned_call_s")

DDP = ExchangeRecipe(
    name="ddp",
    first_bytes=_MIB,
    bucket_bytes=25 * _MIB,
    tensor_s=_TENSOR_S,
    passes=4,
    source="torch nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp: 1 MiB, then 25 MiB, reverse order",
)
APEX = ExchangeRecipe(
    name="apex",
    first_bytes=40_000_000,
    bucket_bytes=40_000_000,
    tensor_s=_TENSOR_S,
    passes=4,
    source="NVIDIA/apex parallel/distributed.py: message_size 1e7 elements, flattened by one kernel",
)
HOROVOD = ExchangeRecipe(
    name="horovod",
    bucket_bytes=64 * _MIB,
    cycle_s=5e-3,
    call_s=_HOROVOD_S.value,
    tensor_s=_TENSOR_S,
    step_s=_KNOWN.cycles_step_s,
    passes=4,
    unknowns=(("call_s", _HOROVOD_S), ("interference", INTERFERENCE)),
    source="horovod/horovod docs: fusion buffer of 64 MB, cycles of 5 ms; every call is negotiated by all ranks",
)
HOROVOD_21 = replace(
    HOROVOD,
    name="horovod-0.21",
    bucket_bytes=128 * _MIB,
    cycle_s=1e-3,
    source="horovod/horovod v0.21.0 (November 2020): cycles of 1 ms instead of 5, 128 MB instead of 64",
)
HOROVOD_TUNED = ExchangeRecipe(
    name="horovod-tuned",
    bucket_bytes=64 * _MIB,
    cycle_s=0.1e-3,
    call_s=_TUNED_S.value,
    passes=4,
    unknowns=(("call_s", _TUNED_S), ("interference", INTERFERENCE)),
    source="NVIDIA/DeepLearningExamples MxNet/Classification/RN50v1.5: HOROVOD_CYCLE_TIME 0.1, copies in batches",
)
REPLICATED = ExchangeRecipe(
    name="tf-replicated",
    call_s=0.0,
    device_s=LAUNCH_S.value,
    tensor_s=_TENSOR_S,
    unknowns=(("device_s", LAUNCH_S), ("interference", INTERFERENCE)),
    source="tensorflow/benchmarks scripts/tf_cnn_benchmarks/variable_mgr.py: one NCCL sum per variable",
)
MIRRORED = ExchangeRecipe(
    name="tf-mirrored",
    bucket_bytes=1 << 62,
    overlaps=False,
    tensor_s=_TENSOR_S,
    step_s=_KNOWN.cycles_step_s,
    passes=4,
    source="tensorflow cross_device_ops.py: NcclAllReduce packs all gradients once the backward has made them",
)
_KEYS = 16
_LAUNCHES_S = LAUNCH_S.times(2, 2 * _KEYS)
"""Of a call of MXNet, on each device: a reduce and a broadcast, of all keys (NCCL 2.2 on) or of each key [s]."""

_OWNER_S = OPERATION_S.times(4)


def mxnet_recipes(*, copies: float, calls: float) -> tuple[ExchangeRecipe, ExchangeRecipe]:
    """MXNet's exchanges in a node, by NCCL and by copies between devices, with their unknowns at places.

    Args:
        copies: where copies staged in a host's memory are between their ends, from 0 at the fast one to 1 at the slow
            one; collectives of NCCL are as far from their slow end
        calls: where the times of calls and copies' handling are between their ends
    """
    launches_s, owner_s, copy_s = (unknown.valued(calls) for unknown in (_LAUNCHES_S, _OWNER_S, COPY_S))
    nccl = ExchangeRecipe(
        name="kvstore-nccl",
        keys=_KEYS,
        bucket_bytes=1 << 62,
        surely_overlaps=False,
        call_s=0.0,
        device_s=launches_s.value,
        bytes_place=1.0 - copies,
        tensor_s=_TENSOR_S,
        collectives=("reduce", "broadcast"),
        owners_update=True,
        unknowns=(("device_s", launches_s), ("interference", INTERFERENCE)),
        source="apache/mxnet src/kvstore/kvstore_nccl.h, python/mxnet/model.py (July 2018): 16 keys a call, an "
        "operation of the engine that waits for their gradients; one thread calls NCCL for all devices; owners update",
    )
    star = ExchangeRecipe(
        name="kvstore-device",
        call_s=owner_s.value,
        copy_s=copy_s.value,
        bytes_place=copies,
        tensor_s=_TENSOR_S,
        unknowns=(("call_s", owner_s), ("copy_s", copy_s), ("host_bytes_per_s", HOST_SUM_BYTES_PER_S)),
        source="apache/mxnet src/kvstore/comm.h: keys by size to the least loaded device, n-1 copies in and out; its "
        "own copy, a sum, an update and its own copy back, each an operation of the engine",
    )
    return nccl, star


KVSTORE_NCCL, STAR = mxnet_recipes(copies=_KNOWN.mxnet_copies, calls=_KNOWN.mxnet_calls)
FUSED = ExchangeRecipe(
    name="fused",
    first_bytes=32 * _MIB,
    bucket_bytes=32 * _MIB,
    tensor_s=_TENSOR_S,
    passes=4,
    source="PaddlePaddle FLAGS_fuse_parameter_memory_size 32 MB; OneFlow fuses at compilation",
)
FLAT = ExchangeRecipe(
    name="flat",
    bucket_bytes=1 << 62,
    overlaps=False,
    tensor_s=_TENSOR_S,
    passes=4,
    source="facebook/fb.resnet.torch: one flat buffer after the backward; MindSpore: one fused all-reduce by default",
)
RECIPES = {
    recipe.name: recipe
    for recipe in (DDP, APEX, HOROVOD, HOROVOD_21, HOROVOD_TUNED, REPLICATED, MIRRORED, KVSTORE_NCCL, FUSED, FLAT)
}

_HOST_S = OPERATION_S.times(2)
_PART_S = OPERATION_S.times(4)

SERVER = ExchangeRecipe(
    name="server",
    call_s=_HOST_S.value,
    copy_s=COPY_S.value,
    tensor_s=_TENSOR_S,
    host_updates=16 * 1024 * 1024,
    unknowns=(("call_s", _HOST_S), ("copy_s", COPY_S), ("host_bytes_per_s", HOST_SUM_BYTES_PER_S)),
    source="apache/mxnet src/kvstore/comm.h CommCPU, kvstore_dist.h: a sum and an update, each an operation of the "
    "engine; python/mxnet/model.py _create_kvstore: which updates on the host",
)
_TF_HOST = _KNOWN.fitted("tf_host_bytes_per_s", rate=True)
TF_SERVER = replace(
    SERVER,
    name="tf-server",
    host_updates=0,
    host_bytes_per_s=_TF_HOST.value,
    unknowns=(("call_s", _HOST_S), ("copy_s", COPY_S), ("host_bytes_per_s", _TF_HOST)),
    source="tensorflow/benchmarks variable_update=parameter_server: variables and their updates on the host",
)
BYTEPS = ExchangeRecipe(
    name="byteps",
    bucket_bytes=4_096_000,
    call_s=_PART_S.value,
    tensor_s=_TENSOR_S,
    unknowns=(("call_s", _PART_S), ("interference", INTERFERENCE)),
    source="bytedance/byteps docs: partitions of 4,096,000 bytes, by priority; copied out, pushed, pulled, copied in",
)
"""Meaning of each `sync` other than "nccl"."""


def recipe_of(software: Software, sync: Sync = "nccl") -> ExchangeRecipe:
    """Defaults of a framework.

    Args:
        software: framework and year; `libraries` may name one of `RECIPES`
        sync: how gradients are exchanged

    Raises:
        InputError: no such method

    Example:
        >>> recipe_of(Software(framework="pytorch", year=2020.0)).bucket_bytes
        26214400
        >>> recipe_of(Software(framework="mxnet", year=2018.0)).name
        'kvstore-nccl'
    """
    others = {"kvstore": STAR, "server": SERVER, "byteps": BYTEPS}
    if sync == "server" and software.framework == "tensorflow":
        return TF_SERVER
    if sync in others:
        return others[sync]
    if sync != "nccl":
        raise InputError(
            f'gradients are exchanged by "nccl", "kvstore", "server" or "byteps", got "{sync}"',
            code="exchange.unknown-sync",
            sync=sync,
        )
    named = [name for name in RECIPES if name in software.libraries]
    if named:
        return RECIPES[max(named, key=len)]
    match software.framework:
        case "tensorflow":
            return REPLICATED if software.year < 2018.0 else _horovod(software.year)
        case "mxnet":
            return KVSTORE_NCCL if software.year < 2019.0 else _horovod(software.year)
        case "paddle" | "oneflow":
            return FUSED
        case "torch7" | "caffe" | "mindspore":
            return FLAT
        case _:
            return DDP


def _horovod(year: float) -> ExchangeRecipe:
    return HOROVOD if year < _HOROVOD_21 else HOROVOD_21
