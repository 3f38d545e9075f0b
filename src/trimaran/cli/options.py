"""Options that several commands share, so that they are spelled, explained and read once.

A command takes options that belong together as one value: a parameter whose type is one of the groups at the end.
`grouped` shows it to typer with the options themselves.
"""

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.base.errors import InputError
from trimaran.base.precision import short_spelling
from trimaran.base.units import MOST_COUNTED, MOST_SEQUENCE, parse_seconds

if TYPE_CHECKING:
    from trimaran.planner.pins import Pins
    from trimaran.planning.requests import Loading, PlanRequest


def option(text: str, *names: str, usual: str | None = None, **more: Any) -> Any:
    """An option for typer, in an annotation.

    Args:
        text: says what it is
        names: by which it is given; none: the name of its parameter, `--local-batch` of `local_batch`
        usual: what is taken where it is not given, in words; None: its default says that; "": nothing is said
        more: of `typer.Option`; a number that has a least value has a most one, too
    """
    if "min" in more:
        more.setdefault("max", MOST_COUNTED)
    return typer.Option(*names, help=text, show_default=True if usual is None else usual or False, **more)


Reference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A built-in job or a network (`trimaran catalog jobs`), file.py:factory, or a Hugging Face config.json.",
    ),
]
Subject = Annotated[str, typer.Argument(metavar="PLAN|JOB", help="A plan file, or a job.")]
Runs = Annotated[Path | None, option("Folder of run directories.", usual="runs", metavar="FOLDER")]
Trace = Annotated[Path | None, option("Write the timeline for a trace viewer.")]
Plot = Annotated[Path | None, option("Draw the result into this SVG file.")]
Devices = Annotated[
    int | None,
    option("Most devices that may take part.", "--devices", "-n", usual="all of this machine", min=1),
]
Json = Annotated[bool, option("Print one JSON object instead of tables.", "--json")]
Seed = Annotated[int | None, option("Seed of weights, order and dropout.", min=0, max=2**63 - 1)]
Batch = Annotated[int | None, option("Samples of one update, over all devices.", min=1)]
Memory = Annotated[
    str | None,
    option('Memory that the job may use of each device, such as "12GiB"; without the context of the driver.'),
]
Oversubscribe = Annotated[bool, option("Allow more ranks than the machine has devices.", "--oversubscribe")]
AcceptInexact = Annotated[
    bool,
    option(
        "Allow plans that train something else than one process with the whole batch; the difference is printed.",
        "--accept-inexact",
    ),
]
PlanFile = Annotated[Path | None, option("Run this plan instead of making one.")]
Link = Annotated[
    str | None,
    option('Rate limit of the links between local ranks, such as "1Gb/s".'),
]
Gradients = Annotated[
    str | None,
    option(
        "Dtype of the gradients of a transformer, in which microbatches accumulate and replicas exchange them: "
        "fp32 or bf16.",
        usual="fp32; bf16 where only that fits",
    ),
]
OptimizerStateName = Annotated[
    str | None,
    option(
        "Optimizer state dtype of a transformer: fp32 (a copy and two moments), remainders (16 bits of "
        "the copy), bf16-moments, precision-aware (both), or adam-8bit.",
        usual="fp32; others where only they fit",
    ),
]
Reserve = Annotated[
    str | None,
    option(
        'Memory of a device that a plan of a transformer leaves free, such as "3GiB" or "5%"; in place '
        "of assumed buffers of collectives and fragments of the allocator."
    ),
]
Workers = Annotated[
    int | None,
    option(
        "Processes of each rank that load its data during the training; 0: its own thread loads.",
        usual="what is worth it",
        min=0,
    ),
]


def seconds_of(text: str | float) -> float:
    """A duration that was typed [s].

    Args:
        text: such as "90", "100us" or "10min"; a default is a number of seconds already

    Raises:
        typer.BadParameter: it is none
    """
    try:
        return parse_seconds(str(text))
    except InputError as error:
        raise typer.BadParameter(error.message) from None


def hang_seconds(text: str | float) -> float:
    """A duration above 0 that was typed, or "none" for an infinite one [s]; arguments and errors as of `seconds_of`."""
    seconds = math.inf if text == "none" else seconds_of(text)
    if seconds <= 0:
        raise typer.BadParameter(f'expected a duration above 0, or "none", got "{text}"')
    return seconds


Gap = Annotated[float, option("Stop when the best is within this share of what anything takes.", min=0.0)]


def _short(precision: str | None) -> str | None:
    """A precision by its short name, with a note on standard error where it was typed in another way."""
    named = None if precision is None else short_spelling(precision)
    if named is not None:
        sys.stderr.write(f"Note: --precision {precision} is written {named}.\n")
    return named or precision


PrecisionName = Annotated[
    str | None,
    option(
        "On a catalog machine: ieee, fp32, tf32, bf16, fp16 or fp8.",
        usual="as the job says; decoders bf16, others fp32",
        callback=_short,
    ),
]
SequenceLength = Annotated[
    int | None,
    option("With --cluster: tokens of a sequence.", usual="the job's", min=1, max=MOST_SEQUENCE),
]
SequenceTokens = Annotated[
    int | None,
    option("Tokens of a sequence.", "--sequence", usual="the job's", min=1, max=MOST_SEQUENCE),
]
MachineName = Annotated[
    str,
    option('A machine (see `trimaran catalog machines`), such as "dgx1-v100", or "dgx-a100:512" for 512 nodes.'),
]
MachineSoftware = Annotated[
    str | None,
    option(
        'Framework and year, such as "pytorch:2020"; "trimaran": its runtime.',
        usual="PyTorch of today; with --sync kvstore MXNet of 2018",
    ),
]
CurveName = Annotated[
    str | None,
    option(
        "How much training each batch needs: a file of `trimaran crossover --measure`, or a name of the "
        "catalog (`trimaran catalog curve --list`); the batch is then chosen too.",
        usual="that of the job",
    ),
]


LengthsText = Annotated[
    str | None,
    option(
        'Lengths of the documents of a decoder with their shares, such as "512:0.4,2048:0.6"; or a file with a '
        "length in each line.",
        usual="documents as long as the sequence",
    ),
]
PackingName = Annotated[
    str | None,
    option(
        'How documents become sequences: "packed" with attention within each, "causal" with attention across '
        'them, "padded" to the longest of a microbatch.',
        usual="packed",
    ),
]
ExpertImbalance = Annotated[
    float,
    option("Load of the busiest rank of experts, by the balanced load: 1 or more."),
]


def check_unused(why: str, given: Mapping[str, object]) -> None:
    """Refuse options that would change nothing.

    Args:
        why: they would not, after the option's name
        given: options and their values; None or False: not given

    Raises:
        InputError: naming the first that was given

    Example:
        >>> check_unused("is of imports", {"--device": None})
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise InputError(f"{name} {why}: leave it out", code="option.unused", option=name)


# ---------------------------------------------------------------------------------------------------------------------
# Groups of options


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: each parameter whose type is a group of options is replaced by these options.

    Args:
        command: takes the groups as values

    Example:
        >>> def command(pins: PinOptions, gap: Gap = 0.0) -> None:
        ...     print(pins.dp, gap)
        >>> list(inspect.signature(grouped(command)).parameters)[-3:]
        ['workers', 'rank_order', 'gap']
        >>> grouped(command)(dp=2)
        2 0.0
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            groups[parameter.name] = group
            parameters += inspect.signature(group).parameters.values()
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def called(**options: Any) -> None:
        for name, group in groups.items():
            known = {field.name for field in dataclasses.fields(group)} & options.keys()
            options[name] = group(**{option: options.pop(option) for option in known})
        command(**options)

    plain = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    called.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {one.name: one.annotation for one in plain}
    return called


def said_of_growth(request: "PlanRequest", asked: str | None) -> "PlanRequest":
    """A request, after a note on standard error of what its cluster is taken for (`note_cluster`).

    Args:
        request: as it was read
        asked: the cluster that was typed; None: none
    """
    note_cluster(request.cluster, asked)
    return request


def with_sequence(job: str, tokens: int | None) -> str:
    """The reference of a job with sequences of another length, as users may write it themselves.

    Args:
        job: its reference
        tokens: of a sequence; None: the job's

    Raises:
        InputError: the job has no such option
    """
    if tokens is None:
        return job
    from trimaran.planning.tracing.request import in_full

    return in_full(job, {"sequence": str(tokens)})


def note_cluster(cluster: str | None, asked: str | None) -> None:
    """Note on standard error that a cluster was given the nodes that its devices need, or that its nodes differ.

    Args:
        cluster: as it is taken; None: this machine
        asked: as it was typed; None: not at all
    """
    if cluster is None:
        return
    if asked is not None and cluster != asked:
        sys.stderr.write(f"Note: {asked} is one node; the devices of this answer take {cluster}.\n")
    if ".toml" in cluster:
        from trimaran.machine.find import find_machine

        machine = find_machine(cluster)
        if machine.kinds:
            sys.stderr.write(f"Note: of {machine.kinds_text} all count as {machine.node.name}, the slowest.\n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PinOptions:
    """Options that decide parts of a strategy."""

    allow: Annotated[
        list[str] | None,
        option(
            'Use only these kinds of parallelism, or one device. "compress", "stale", "dualpipe" and '
            '"optimizer-offload" restrict nothing: they allow lossy compression of gradients, gradients of earlier '
            "weights (PipeDream), pipelines from both ends, and the optimizer's state on the host. Repeatable.",
            metavar="KIND",
        ),
    ] = None
    forbid: Annotated[
        list[str] | None,
        option(
            "Do not use a kind of parallelism: dp, pp, tp, placement, zero, sharded, p2p, hierarchical, gpipe, "
            "1f1b, interleaved, zero-bubble, compiled, memory, compress, stale, cache, dualpipe, optimizer-offload. "
            "Repeatable.",
            metavar="KIND",
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        option(
            'Run a module on this row of a replica (stage or place), such as "layer4=1". Repeatable.',
            metavar="MODULE=ROW",
        ),
    ] = None
    strategy: Annotated[
        str | None,
        option('Take this strategy, written as plans print it, such as "dp8 zero1 m2"; in place of --dp and its like.'),
    ] = None
    dp: Annotated[int | None, option("Number of data-parallel replicas.", min=1)] = None
    pp: Annotated[
        int | None, option("Pipeline-parallel size: stages of a replica, or places of a placement.", min=1)
    ] = None
    tp: Annotated[int | None, option("Number of ranks that share the tensors of a row.", min=1)] = None
    cp: Annotated[int | None, option("Number of ranks that share each sequence (transformers).", min=1)] = None
    ep: Annotated[int | None, option("Number of ranks that hold different experts (transformers).", min=1)] = None
    etp: Annotated[int | None, option("Number of ranks that share each expert (transformers).", min=1)] = None
    vp: Annotated[
        int | None, option("Parts of the layers on each stage; more than one is the interleaved schedule.", min=1)
    ] = None
    micro_batch: Annotated[int | None, option("Samples of a microbatch of a replica.", min=1)] = None
    recompute: Annotated[
        str | None,
        option(
            "What the backward of a transformer recomputes: none, selective (some of it, never whole layers), "
            "attention, layers, or layers:N for the first N layers of each stage or chunk.",
            usual="auto",
        ),
    ] = None
    zero: Annotated[
        int | None, option("Shard over replicas: 1 optimizer state, 2 gradients, 3 parameters too.", min=0, max=3)
    ] = None
    microbatches: Annotated[int | None, option("Number of microbatches of a replica.", min=1)] = None
    schedule: Annotated[
        str | None,
        option(
            "Pipeline schedule: gpipe, 1f1b, interleaved, zero-bubble; or pipedream, which is never flushed and keeps "
            "earlier weights of each stage (stale: not the training of one process)."
        ),
    ] = None
    nodes: Annotated[
        int | None,
        option(
            "Sum gradients within each of this number of nodes and then across them, whatever hosts the ranks are on.",
            usual="auto, where ranks are on several hosts",
            min=1,
        ),
    ] = None
    compression: Annotated[
        str | None,
        option(
            'Send gradients so: "bf16", "fp16", "powersgd:RANK", or "none".',
            usual="none; auto with --allow compress",
        ),
    ] = None
    codec: Annotated[
        str | None,
        option(
            'Let memory plans code what they offload, where that is faster: "sparse" (exact, of what comes after a '
            'ReLU), "sparse:2.6" with how many times fewer bytes, "bf16" (rounds, so gradients differ).',
            usual="bytes go as they are",
        ),
    ] = None
    powersgd_samples: Annotated[
        float | None,
        option(
            "Factor on the samples to the target under PowerSGD, 1 or more; plans are compared with it. "
            "With --allow compress or --compression powersgd:RANK.",
            usual="as on built-in jobs",
        ),
    ] = None
    gradients: Gradients = None
    optimizer_state: OptimizerStateName = None
    workers: Workers = None
    rank_order: Annotated[
        str | None,
        option(
            'Which ranks of a transformer on many devices are next to each other, the nearest first: "tp,pp,dp".',
            usual="tp,cp,dp,pp, as Megatron has them",
            metavar="ORDER",
        ),
    ] = None

    def read(self) -> "Pins":
        """The pins.

        Raises:
            InputError: a word or a figure that means nothing, or two pins that contradict each other
        """
        from trimaran.planner.pins import parse_pins

        return parse_pins(**vars(self))


Measured = Annotated[
    str | None,
    option(
        'What was measured of the job: "dp8 zero1, step=4.1 s, memory=61 GiB, batch=64", a trace of torch\'s profiler, '
        'a folder of a run, a log, an answer of `rehearse`, a file of `doctor --measure`, or "363 images/s at 64".',
    ),
]


def respelled(measured: str | None, **old: Path | None) -> str | None:
    """What --measured says, or an old spelling of it, which is noted on standard error.

    Args:
        measured: as given
        old: options that it took the place of, by name

    Raises:
        InputError: more than one of them is given
    """
    for name, value in old.items():
        if value is not None:
            if measured is not None:
                raise InputError(
                    f"--{name} {value} is --measured {value} now, and --measured {measured} is given: leave one out",
                    code="measured.given-twice",
                    option=f"--{name}",
                )
            sys.stderr.write(f"Note: --{name} is written --measured {value}.\n")
            measured = str(value)
    return measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Options of a request for a plan of this machine, besides pins."""

    devices: Devices = None
    memory: Memory = None
    oversubscribe: Oversubscribe = False
    link: Link = None
    objective: Annotated[
        str | None,
        option(
            'What to optimise: "throughput"; the time of an "epoch", on this machine; the "time" to the target, or its '
            '"cost" (with --curve).',
            usual="throughput, with --curve time, or that of the plan",
        ),
    ] = None
    execution: Annotated[str, option('How segments may run: "any", "eager", "compiled".')] = "any"
    measured: Measured = None
    calibration: Annotated[Path | None, option("Old spelling of --measured.", hidden=True)] = None

    def read(self, pins: PinOptions, **more: Any) -> "PlanRequest":
        """The request; where its cluster has more nodes than its name says, that is noted on standard error.

        Args:
            pins: of it
            more: of its other options, as `parse_request` takes them

        Raises:
            InputError: a text that means nothing, or an option that means nothing there or here
        """
        from trimaran.planning.requests import parse_request

        given = vars(self) | {"pins": pins.read()} | more
        given["measured"] = respelled(given["measured"], calibration=given.pop("calibration"))
        return said_of_growth(parse_request(**given), getattr(self, "cluster", None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(RequestOptions):
    """Options of a request for a new plan, which may be for a target cluster."""

    cluster: Annotated[
        str | None,
        option('Plan for a target cluster (`trimaran catalog machines`), such as "dgx1-v100"; nothing is measured.'),
    ] = None
    precision: PrecisionName = None
    software: Annotated[
        str | None, option('With --cluster: framework and year, such as "pytorch:2020"; "trimaran": its runtime.')
    ] = None
    sequence: SequenceLength = None
    batch: Batch = None
    reserve: Reserve = None
    time_limit_s: Annotated[
        float | None,
        option(
            'Search no longer than this, such as "90" (seconds) or "10min"; the best so far is taken. Counted in '
            "work that an idle core does in that time, so that the answer is the same on a busy machine.",
            "--time-limit",
            parser=seconds_of,
            metavar="TIME",
        ),
    ] = None
    gap: Gap = 0.0
    lengths: LengthsText = None
    packing: PackingName = None
    expert_imbalance: ExpertImbalance = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions(SearchOptions):
    """Options of a request for a new plan, which may compare several numbers of devices."""

    devices: Annotated[
        str | None,
        option(
            'Most devices that may take part; or several numbers to compare, such as "512,1024" or "256..2048".',
            "--devices",
            "-n",
            usual="all of the machine",
        ),
    ] = None  # type: ignore[assignment]  # a text: several numbers

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of devices that are compared, ascending; empty where one number is given, or none.

        Raises:
            InputError: a text that means none
        """
        found = self._counts()
        return found if len(found) > 1 else ()

    def read(self, pins: PinOptions, **more: Any) -> "PlanRequest":
        """The request for at most the largest number of devices; arguments and errors as of `RequestOptions.read`."""
        from trimaran.planning.requests import parse_request

        given = vars(self) | {"devices": max(self._counts(), default=None)}
        return said_of_growth(parse_request(**given, pins=pins.read(), **more), self.cluster)

    def _counts(self) -> tuple[int, ...]:
        from trimaran.planning.requests import parse_counts

        return () if self.devices is None else tuple(sorted(parse_counts(str(self.devices), what="devices")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """Options of the input pipeline of a target cluster."""

    loader: Annotated[
        str | None,
        option(
            'On a target cluster: rate at which data are loaded, of a node ("1070 images/s"), of a worker ("135 '
            'images/s per worker"), of a published row ("1070 images/s with 8 workers"); a library (torchvision, '
            'tensorflow, mxnet, dali-cpu, dali); or "measured": the data set of the job on this machine.',
            usual="data are always ready",
        ),
    ] = None
    decode: Annotated[
        str | None, option('On a target cluster: work of a core for a sample, such as "7.4ms"; in place of --loader.')
    ] = None
    disk: Annotated[
        str | None,
        option(
            'On a target cluster: rate of the disk of a node, which its devices share, such as "500MB/s"; with '
            "--sample-size."
        ),
    ] = None
    sample_size: Annotated[str | None, option('What a sample takes on that disk, such as "110kB".')] = None
    host_cores: Annotated[
        int | None,
        option(
            "On a target cluster: cores of a node that load.",
            usual="all, less one for each of its devices; of a library all",
            min=1,
        ),
    ] = None
    copies_ahead: Annotated[
        int | None,
        option(
            "On a target cluster: microbatches that are copied to a device before they are asked for; 0: when "
            "asked for.",
            usual="1",
            min=0,
        ),
    ] = None

    def read(self) -> "Loading":
        """The input pipeline as it was written."""
        from trimaran.planning.requests import Loading

        return Loading(**vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a training of a number of tokens, as `parse_target` takes them."""

    tokens: Annotated[
        str | None,
        option('Train a decoder on these tokens, such as "15T": days, cost, goodput with failures. With --cluster.'),
    ] = None
    price: Annotated[
        str | None,
        option(
            'Of devices, such as "24.48 USD/node-hour" or "3 USD/device-hour".',
            usual="that of the cluster file; else device-hours",
        ),
    ] = None
    mtbf: Annotated[
        str | None,
        option(
            'Mean time between failures of a node or a device, such as "180 days/node".', usual="published clusters"
        ),
    ] = None
    checkpoint_rate: Annotated[
        str | None,
        option(
            'Rate at which checkpoints are written and read: "200GB/s" of all nodes, or "2GB/s/node".',
            usual="published reference storage",
        ),
    ] = None
    checkpoint_every: Annotated[str | None, option("Time between two checkpoints.", usual="what is best")] = None
    checkpoint_waits: Annotated[
        bool,
        option(
            "Training waits until a checkpoint is written, not for its copy to the host alone.", "--checkpoint-waits"
        ),
    ] = False
    restart: Annotated[
        str | None, option("Time from a failure until the processes run again.", usual="5min, from 2 to 20")
    ] = None
    repair: Annotated[str | None, option("Mean time until a failed node is back.", usual="1d")] = None
    spares: Annotated[
        str | None,
        option('Nodes held ready, and paid: "4", or "99%", the probability that they are enough.', usual="none"),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetOptions(RunOptions):
    """Options of a training to a target, as `parse_target` takes them."""

    curve: CurveName = None
    batches: Annotated[
        str | None,
        option(
            'Global batches that may be chosen: "64,128", or "64..4096" in doublings.',
            usual="powers of two times the job's, as far as the curve is known",
        ),
    ] = None
    most_local_batch: Annotated[
        int | None,
        option("Most samples of one replica in one update.", "--max-local-batch", usual="what memory allows", min=1),
    ] = None
    least_saved: Annotated[
        float, option("A doubling of the devices that saves less than this share of the time is not worth it.")
    ] = 0.1
    samples_per_epoch: Annotated[
        int | None, option("Samples of the training data.", usual="those of the job, or as the curve says", min=1)
    ] = None
    days: Annotated[float | None, option("Find the number of devices that ends within these days.")] = None
    budget: Annotated[
        str | None, option('Find the number of devices that costs no more, such as "1M USD"; with a price.')
    ] = None
