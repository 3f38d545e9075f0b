"""`torch.cuda` and `torch.accelerator` of a simulated device.

Streams and events are numbers that the recorder notes; memory statistics come from the recorder's pool; what the
device is called and how large it is comes from the request. What these modules ask of the driver is answered here, each
name in one place.
"""

import contextlib
import inspect
import threading
import time
from collections import defaultdict
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import _disable_current_modes

from trimaran.rehearsal.device import guard
from trimaran.rehearsal.device.replaced import replace
from trimaran.rehearsal.record import Await, EventMark, Issue, Moves, Run, Step, Wait
from trimaran.rehearsal.recorder import ScriptRecorder
from trimaran.rehearsal.request import RankRequest

_recorder: ScriptRecorder
_device: "CurrentDevice"


class CurrentDevice:
    """The device that is current: the first one until a script says another.

    Args:
        count: devices of the node
    """

    def __init__(self, count: int) -> None:
        self.current = 0
        self.count = count
        self.is_used = False  # whether a process of a GPU would have made its context: a mesh sets no other one then

    def use(self, answer: Any = None) -> Any:
        """Something was asked of a device; the answer."""
        self.is_used = True
        return answer

    def index_of(self, device: Any = None) -> int:
        """The index that a device, a number or nothing means.

        Raises:
            RuntimeError: as CUDA does for a device that the node does not have
        """
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        if index is None:
            self.use()
            return self.current
        if not -1 <= index < self.count:
            raise RuntimeError(f"CUDA error: invalid device ordinal: device {index} of a node with {self.count}")
        return self.current if index < 0 else int(index)

    def set(self, device: Any) -> None:
        """Make a device the current one."""
        self.current = self.use(self.index_of(device))


class Stream:
    """A stream of the simulated device."""

    def __new__(cls, *_: Any, **__: Any) -> "Stream":
        """Any arguments of torch's own."""
        return object.__new__(cls)

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.number = _recorder.new_stream()
        self.device_index = _device.use(_device.index_of(device))
        self.device = torch.device("cuda", self.device_index)
        self.device_type = 1
        self.priority = priority
        self.stream_id = self.cuda_stream = self.native_handle = self.number

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event on this stream."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """Later work of this stream waits for an event."""
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        """Later work of this stream waits for what another one has now."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """The host waits for this stream."""
        _recorder.synchronize(self.number)

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is captured."""
        return False

    def __enter__(self) -> "Stream":
        _recorder.stream_stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _recorder.stream_stack.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


class _ForeignStream(Stream):
    """`ExternalStream`, which another library has made."""

    def __init__(self, stream_ptr: int = 0, device: Any = None, **_: Any) -> None:
        super().__init__(device)


class Event:
    """An event of the simulated device."""

    _made = 0
    _lock = threading.Lock()

    def __new__(cls, *_: Any, **__: Any) -> "Event":
        """Any arguments of torch's own."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = -1
        self.at = time.perf_counter()
        self.event_id = self.cuda_event = 0
        self.device = torch.device("cuda", _device.current)

    @classmethod
    def next_number(cls) -> int:
        """Of what is recorded now."""
        with cls._lock:
            cls._made += 1
            return cls._made - 1

    def record(self, stream: Stream | None = None) -> None:
        """Note where the stream is."""
        self.number = self.next_number()
        self.at = time.perf_counter()
        _recorder.mark(self.number, (stream or _recorder.stream_stack[-1]).number)

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of the stream waits for this event."""
        if self.number >= 0:
            _recorder.wait_event(self.number, (stream or _recorder.stream_stack[-1]).number)

    def synchronize(self) -> None:
        """The host waits for this event."""
        _recorder.synchronize()

    def query(self) -> bool:
        """Whether it has passed."""
        return True

    def elapsed_time(self, other: "Event") -> float:
        """Time between two events [ms]; of this host, so nothing of the device."""
        _recorder.invent("elapsed time", "elapsed_time", "of this host")
        return (other.at - self.at) * 1e3


class SimulatedGraph:
    """A CUDA graph: what is captured runs once, and once more with every replay."""

    _replays = 0

    def __new__(cls, *_: Any, **__: Any) -> "SimulatedGraph":
        """Any arguments of torch's own."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        self._begin = self._end = 0

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """From here."""
        self._begin = len(_recorder.record.events)

    def capture_end(self) -> None:
        """To here."""
        self._end = len(_recorder.record.events)

    def __enter__(self) -> "SimulatedGraph":
        self.capture_begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.capture_end()

    def replay(self) -> None:
        """The same kernels, collectives, waits and steps; its memory stays where it is."""
        events, collectives = _recorder.record.events, _recorder.record.collectives
        SimulatedGraph._replays += 1
        calls: dict[int, int] = {}
        marks: dict[int, int] = {}
        for event in events[self._begin : self._end]:
            match event:
                case Run() | Moves():
                    events.append(event)
                case Issue(number):
                    asked = collectives[number]
                    if asked.coalesced >= 0:
                        asked = msgspec.structs.replace(
                            asked, coalesced=asked.coalesced + _BATCHES * SimulatedGraph._replays
                        )
                    calls[number] = _recorder.issue(asked)
                case Wait(number, stream):
                    events.append(Wait(calls.get(number, number), stream))
                case EventMark(number, stream):
                    marks[number] = Event.next_number()
                    events.append(EventMark(marks[number], stream))
                case Await(number, stream):
                    events.append(Await(marks.get(number, number), stream))
                case Step():
                    _recorder.stepped()

    def reset(self) -> None:
        """Nothing is left of it."""
        self._begin = self._end = 0

    def pool(self) -> tuple[int, int]:
        """Of the device's memory."""
        return (0, 0)


_BATCHES = 2**20
"""More batches of collectives than a rehearsal has."""


class _OnDevice:
    """`torch.cuda.device`."""

    def __init__(self, device: Any = None) -> None:
        self.idx = _device.index_of(device)
        self.before = _device.current

    def __enter__(self) -> None:
        self.before = _device.current
        _device.set(self.idx)

    def __exit__(self, *_: object) -> None:
        _device.set(self.before)


class _Runtime:
    """`torch.cuda.cudart()`: whatever is called succeeds."""

    cudaError = SimpleNamespace(success=0)  # noqa: N815  as it is called there

    def cudaMemGetInfo(self, device: Any = None) -> tuple[int, int]:  # noqa: N802  as it is called there
        """Free and total bytes."""
        return torch.cuda.mem_get_info(device)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *_, **__: 0


class _MemPool:
    """`torch.cuda.MemPool`: what is taken in it comes from the one allocator."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _recorder.note("torch.cuda.MemPool: one pool for all")
        self.id = (0, 0)
        self.allocator = None

    def snapshot(self, *_: Any, **__: Any) -> list[Any]:
        """Nothing is known of it alone."""
        return []

    def use_count(self) -> int:
        """Of this object."""
        return 1


class _Marks:
    """`nvtx`, which draws nothing here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: contextlib.nullcontext() if name == "range" else 0


def install(recorder: ScriptRecorder, request: RankRequest) -> CurrentDevice:
    """Answer for torch's modules of the device from now on; the device that is current."""
    global _recorder, _device
    gpu = request.gpu
    count = min(request.per_node, request.world)
    _recorder, _device = recorder, CurrentDevice(count)
    guard.current_index = lambda: _device.current
    recorder.default_stream = Stream()
    _device.is_used = False
    pool = recorder.pool
    properties = SimpleNamespace(
        name=gpu.name,
        total_memory=gpu.memory_bytes,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=gpu.multiprocessors,
        is_integrated=0,
        is_multi_gpu_board=0,
        L2_cache_size=50 * 2**20,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
        gcnArchName="",
        pci_bus_id=1,
        pci_device_id=0,
        pci_domain_id=0,
    )
    generators = tuple(_DefaultGenerator(index) for index in range(count))

    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        _device.use()
        return generators[_device.index_of(device)].get_state()

    def set_rng_state(state: torch.Tensor, device: Any = "cuda") -> None:
        generators[_device.index_of(device)].set_state(state)

    def set_rng_state_all(given: Any) -> None:
        for index, state in enumerate(given):
            set_rng_state(state, index)

    share = 1.0

    def limit(fraction: float, _: Any = None) -> None:
        nonlocal share
        pool.limit_share(fraction)
        share = fraction

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def reading(name: str) -> Any:
        """What a driver would read off the device now."""

        def read(_: Any = None) -> int:
            recorder.invent("reading of the device", name, 0)
            return 0

        return read

    runtime = _Runtime()

    def set_stream(stream: Stream) -> None:
        recorder.stream_stack[-1] = stream

    memory: dict[str, Any] = {
        "memory_allocated": lambda _=None: pool.allocated,
        "max_memory_allocated": lambda _=None: pool.peak_allocated,
        "memory_reserved": lambda _=None: pool.reserved,
        "max_memory_reserved": lambda _=None: pool.peak_reserved,
        "memory_cached": lambda _=None: pool.reserved,
        "max_memory_cached": lambda _=None: pool.peak_reserved,
        "memory_stats": lambda _=None: defaultdict(int, pool.stats()),
        "memory_stats_as_nested_dict": lambda _=None: {},
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
            lambda _=None: pool.reset_peaks(),
        ),
        "reset_accumulated_memory_stats": lambda _=None: pool.reset_sums(),
        "memory_summary": lambda *_, **__: (
            f"allocated {pool.allocated / 2**30:.2f} GiB, at most {pool.peak_allocated / 2**30:.2f} GiB; "
            f"reserved {pool.reserved / 2**30:.2f} GiB"
        ),
        "memory_snapshot": lambda *_, **__: [],
        "mem_get_info": lambda _=None: (max(0, gpu.memory_bytes - pool.reserved), gpu.memory_bytes),
        "empty_cache": recorder.empty_cache,
        "set_per_process_memory_fraction": limit,
    }
    answers: dict[str, Any] = memory | {
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "is_initialized": lambda: _device.is_used,
        "init": _device.use,
        "_lazy_init": _device.use,
        "device_count": lambda: count,
        "_device_count_nvml": lambda: count,
        "current_device": lambda: _device.index_of(),
        "set_device": _device.set,
        "get_device_name": lambda _=None: _device.use(gpu.name),
        "get_device_capability": lambda _=None: _device.use(gpu.capability),
        "get_device_properties": lambda _=None: _device.use(properties),
        "synchronize": lambda _=None: recorder.synchronize(),
        "ipc_collect": nothing,
        "is_bf16_supported": lambda *_, **__: gpu.capability >= (8, 0),
        "is_tf32_supported": lambda: gpu.capability >= (8, 0),
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": _ForeignStream,
        "get_stream_from_external": _ForeignStream,
        "CUDAGraph": SimulatedGraph,
        "graph": lambda graph, *_, **__: graph,
        "graph_pool_handle": lambda: (0, 0),
        "make_graphed_callables": lambda callables, *_, **__: callables,
        "current_stream": lambda _=None: recorder.stream_stack[-1],
        "default_stream": lambda _=None: recorder.default_stream,
        "stream": lambda stream: stream or contextlib.nullcontext(),
        "StreamContext": lambda stream: stream or contextlib.nullcontext(),
        "set_stream": set_stream,
        "device": _OnDevice,
        "device_of": lambda tensor: _OnDevice(tensor.device if tensor.is_cuda else -1),
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state(index) for index in range(count)],
        "set_rng_state_all": set_rng_state_all,
        "is_current_stream_capturing": lambda: False,
        "list_gpu_processes": lambda _=None: "",
        "device_memory_used": lambda _=None: pool.reserved,
        "host_memory_stats": lambda: defaultdict(int),
        "reset_accumulated_host_memory_stats": nothing,
        "reset_peak_host_memory_stats": nothing,
        "cudart": lambda: runtime,
        "check_error": nothing,
        "_sleep": nothing,
        "set_sync_debug_mode": nothing,
        "get_sync_debug_mode": lambda: 0,
        "MemPool": _MemPool,
        "use_mem_pool": lambda *_, **__: contextlib.nullcontext(),
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "can_device_access_peer": lambda *_: True,
        "_check_bf16_tensor_supported": lambda *_: gpu.capability >= (8, 0),
        "current_blas_handle": lambda: 0,
        "current_solver_handle": lambda: 0,
        "host_memory_stats_as_nested_dict": dict,
        "get_per_process_memory_fraction": lambda _=None: share,
    }
    answers |= {
        name: _refusing(f"torch.cuda.{name}", "memory comes from torch's own allocator") for name in _ALLOCATORS
    }
    cuda = torch.cuda
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"):
        answers[name] = reading(name)
    for name, answer in answers.items():
        answer = _apart(answer, getattr(cuda, name, None))
        setattr(cuda, name, answer)
        for module in (cuda.memory, cuda.random, cuda.streams, cuda.graphs, cuda.profiler):
            if hasattr(module, name):
                setattr(module, name, answer)
    replace(cuda, default_generators=generators)
    replace(cuda.nvtx, _NVTX=_Marks(), _nvtx=_Marks())
    replace(torch.backends.cudnn, is_available=lambda: True, version=lambda: 91002, _init=lambda: True)
    cuda.nccl.version = lambda: (2, 27, 5)
    cuda.nccl.is_available = lambda _: True
    torch.version.cuda = "12.8"
    replace(torch, Stream=Stream, Event=Event, Generator=_Generator)

    for kind, dtype in _TYPES.items():
        replace(cuda, **{f"{kind}Tensor": _TypeKind(f"{kind}Tensor", (), {"dtype": dtype})})

    accelerator: dict[str, Any] = {name: memory[name] for name in memory if hasattr(torch.accelerator, name)} | {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: _device.index_of(),
        "current_device_idx": lambda: _device.index_of(),
        "set_device_index": _device.set,
        "set_device_idx": _device.set,
        "synchronize": answers["synchronize"],
        "current_stream": answers["current_stream"],
        "set_stream": set_stream,
        "get_memory_info": memory["mem_get_info"],
        "Graph": SimulatedGraph,
        "device_index": _OnDevice,
        "empty_host_cache": nothing,
        "get_device_capability": lambda _=None: {"supported_dtypes": set(_TYPES.values())},
    }
    for name, answer in accelerator.items():
        setattr(torch.accelerator, name, _apart(answer, getattr(torch.accelerator, name, None)))

    bound: dict[str, Any] = {
        "_cuda_setDevice": _device.set,
        "_cuda_getDevice": lambda: _device.current,
        "_cuda_getDeviceCount": lambda: count,
        "_cuda_exchangeDevice": _exchanged,
        "_cuda_maybeExchangeDevice": _exchanged,
        "_cuda_setStream": nothing,
        "_cuda_getCurrentRawStream": lambda _: recorder.stream,
        "_cuda_synchronize": lambda: recorder.synchronize(),
        "_cuda_emptyCache": recorder.empty_cache,
        "_cuda_resetPeakMemoryStats": lambda _: pool.reset_peaks(),
        "_cuda_memoryStats": lambda _: {},
        "_cuda_isInBadFork": lambda: False,
        "_cuda_clearCublasWorkspaces": recorder.clear_workspaces,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_record_memory_history": nothing,
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
        "_scatter": _to_one_device,
        "_gather": lambda tensors, *_: tensors[0],
        "_broadcast_coalesced": lambda tensors, devices, _: [list(tensors) for _ in devices],
    }
    for name, answer in bound.items():
        setattr(torch._C, name, answer)
    return _device


def _to_one_device(tensor: torch.Tensor, devices: Any, *_: Any) -> tuple[torch.Tensor, ...]:
    """What `nn.DataParallel` does with a batch.

    Raises:
        NotImplementedError: several devices, as it then runs a thread for each in this one process
    """
    if len(devices) != 1:
        raise NotImplementedError(
            f"nn.DataParallel over {len(devices)} devices of one process is not rehearsed: "
            "DistributedDataParallel gives each device a rank"
        )
    return (tensor.to(torch.device("cuda", devices[0])),)


_ALLOCATORS = (
    "caching_allocator_alloc", "caching_allocator_delete", "caching_allocator_disabled", "caching_allocator_enable",
    "change_current_allocator", "CUDAPluggableAllocator",
)  # fmt: skip
"""What asks below tensors for memory, or for it from elsewhere."""


def _refusing(name: str, why: str) -> Any:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not rehearsed: {why}; leave it out of the script for a rehearsal")

    return refused


def _apart(answer: Any, own: Any) -> Any:
    """A function that no other name has, as torch's compiler keeps rules by name, and that takes what torch's takes.

    Args:
        answer: takes the first arguments by place
        own: torch's function of this name; None: there is none
    """
    if not isinstance(answer, (FunctionType, MethodType)):
        return answer
    try:
        signature = inspect.signature(own)
    except (TypeError, ValueError):  # none, or one below Python
        signature = None
    parameters = inspect.signature(answer).parameters.values()
    takes_all = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    most = None if takes_all else sum(one.kind is not one.VAR_KEYWORD for one in parameters)

    def asked(*args: Any, **kwargs: Any) -> Any:
        if kwargs and signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args[:most], bound.kwargs
        return answer(*args, **kwargs)

    return asked


class _TypeKind(type):
    """`torch.cuda.FloatTensor` and its like: makes tensors, and is what they are instances of."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **_: Any) -> Any:
        if args and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, torch.Tensor) and one.device.type == "cuda" and one.dtype == cls.dtype


_TYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Byte": torch.uint8, "Char": torch.int8,
    "Bool": torch.bool,
}  # fmt: skip


def _exchanged(device: int) -> int:
    before = _device.current
    _device.set(device)
    return before


_RealGenerator = torch.Generator


class _DefaultGenerator:
    """A device's own generator, whose state is a seed and an offset of eight bytes each.

    Args:
        index: of the device
    """

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        with _disable_current_modes():
            self._state = torch.zeros(16, dtype=torch.uint8)

    def get_state(self) -> torch.Tensor:
        """A copy."""
        with _disable_current_modes():
            return self._state.clone()

    def set_state(self, state: torch.Tensor) -> "_DefaultGenerator":
        """Take another one."""
        with _disable_current_modes():
            self._state = state.detach().clone()
        return self

    graphsafe_get_state = clone_state = get_state
    graphsafe_set_state = set_state

    def manual_seed(self, seed: int) -> "_DefaultGenerator":
        """Seed it."""
        with _disable_current_modes():
            self._state = torch.tensor([seed % 2**63, 0], dtype=torch.int64).view(torch.uint8)
        return self

    def initial_seed(self) -> int:
        """As seeded."""
        with _disable_current_modes():
            return int(self._state.view(torch.int64)[0])

    seed = initial_seed

    def get_offset(self) -> int:
        """How far it has gone."""
        return 0

    def set_offset(self, offset: int) -> None:
        """Go on from there."""


class _GeneratorKind(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _RealGenerator)


class _Generator(metaclass=_GeneratorKind):
    """`torch.Generator`, which is on the host whatever device is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _RealGenerator("cpu")
