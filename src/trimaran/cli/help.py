"""Pages of `--help`: commands in groups, the common options of a command first, the others under headings.

Pages are plain text of at most 80 columns. Types have no column: what an option takes stands behind its name.
"""

import contextlib
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from trimaran.base.errors import InputError
from trimaran.base.files import check_writable
from trimaran.base.printable import screen_size
from trimaran.cli.following import begin_command
from trimaran.cli.forms import form_meant, forms_of, note_old, words_of
from trimaran.cli.output import errors_reported, set_verbosity

WIDTH = 80
"""Most columns of a page."""

COMMON = 10
"""Most options that stand first."""

_TERM = 20
"""Columns of names of options; longer ones stand in a separate line."""

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Plan": {
        "plan": "find the fastest way to train a job that fits",
        "check": "which kinds of plans train a job exactly",
        "memory": "whether a step fits a device, and what needs the memory",
        "scale": "throughput on 1, 8, 64, … devices, and what limits it",
        "crossover": "from how many devices on model parallelism is faster",
        "export": "write a plan for accelerate, FSDP2, Megatron or torchtitan",
    },
    "Run": {
        "train": "train a job by its plan; predicted against measured",
        "rehearse": "run a script for many GPUs as any of its ranks, without a GPU",
        "verify": "whether ranks of a script train the model of one process",
    },
    "Diagnose": {
        "explain": "why this plan, why not another, and what would help",
        "observe": "run a PyTorch script as it is; what limits it, what would help",
        "report": "a run, a plan or a study as one HTML file",
        "doctor": "what is here, what is missing, and what is exposed",
        "catalog": "jobs, machines, convergence curves and checkpoints",
    },
}
"""Commands by what they are for, with what each answers. Those of other packages are added to the last group."""

_FIRST = (
    *("--to", "--strategies", "--device", "--cluster", "--devices", "--world", "--why-not", "--what-if", "--batch"),
    *("--local-batch", "--global-batch", "--batches", "--target", "--repeats", "--precision", "--memory", "--strategy"),
    *("--objective", "--budget", "--plan", "--epochs", "--resume", "--save-every", "--stalls", "--by", "--top"),
    *("--sync", "--sequence", "--forbid", "--tokens", "--output", "--plot", "--trace", "--json"),
)
"""Common options, in order."""

_HEADINGS: Mapping[str, Sequence[str]] = {
    "Parts of the strategy that you decide": (
        *("--strategy", "--allow", "--forbid", "--keep", "--dp", "--pp", "--tp", "--cp", "--ep", "--etp", "--vp"),
        *("--zero", "--micro-batch", "--microbatches", "--schedule", "--recompute", "--nodes", "--rank-order"),
        *("--compression", "--powersgd-samples", "--codec", "--gradients", "--optimizer-state", "--execution"),
        "--accept-inexact",
    ),
    "Machine and costs": (
        *("--software", "--memory", "--reserve", "--oversubscribe", "--link", "--calibration", "--nccl-log"),
        *("--measured", "--per-node", "--alloc-conf", "--sharing", "--host", "--servers", "--price"),
        "--server-price",
    ),
    "Batches and data of the job": (
        *("--batch", "--sequence", "--lengths", "--packing", "--expert-imbalance", "--length-spread", "--seed"),
        *("--microbatch", "--samples-per-epoch", "--max-local-batch"),
    ),
    "Input pipeline": (
        *("--workers", "--loader", "--decode", "--disk", "--sample-size", "--host-cores", "--copies-ahead"),
    ),
    "Memory plan": ("--policy", "--slowdown", "--largest-batch", "--split", "--codec", "--storages", "--chart"),
    "Training to a target": (
        *("--objective", "--curve", "--target", "--batches", "--least-saved", "--days", "--budget"),
    ),
    "Training on a number of tokens, with failures": (
        *("--tokens", "--mtbf", "--checkpoint-rate", "--checkpoint-every", "--checkpoint-waits", "--restart"),
        *("--repair", "--spares"),
    ),
    "Search": ("--time-limit", "--gap"),
    "Export": ("--to", "--rehearse"),
    "Learning rate and length of runs": (
        *("--lr-rule", "--warmup", "--schedule", "--max-epochs", "--time-limit", "--evaluations"),
    ),
    "Checkpoints and failures": (
        *("--resume", "--save-every", "--max-restarts", "--weights", "--with-optimizer", "--trust-pickle"),
        *("--hang-timeout", "--callback-timeout", "--on-nan"),
    ),
    "What is measured": (
        *("--trial", "--verify", "--gradient-noise", "--steps", "--stalls", "--plan", "--by", "--top", "--ranks"),
        *("--limit",),
        *("--hint", "--module"),
    ),
    "Files": ("--runs", "--log", "--output", "--plot", "--trace", "--logs"),
}
"""Options that are not common, by heading, in order; where two headings have one, the first of a page has it."""

_OWN_HEADINGS: Mapping[str, Mapping[str, str]] = {
    "converge": dict.fromkeys(("--schedule", "--time-limit"), "Learning rate and length of runs"),
    "plan": {"--price": "Training on a number of tokens, with failures"},
    "price": {"--price": "Training on a number of tokens, with failures"},
}

_WRITTEN = ("--output", "--trace")
"""Options that name a file which is written at the end, often of long work; a checkpoint's export may be a folder."""

_LAST = "What is printed"
_PRINTED = ("--verbose", "--quiet", "--json", "--help")
_FEW = 12
"""Options that are listed without headings."""

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print everything, with what was rejected by name.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict alone.")]


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes --verbose and --quiet too.

    Args:
        command: for typer, with the options themselves
    """

    @wraps(command)
    def called(*, verbose: bool, quiet: bool, **options: Any) -> None:
        if verbose and quiet:
            raise typer.BadParameter("--verbose and --quiet exclude each other")
        set_verbosity(verbose=verbose, quiet=quiet)
        command(**options)

    own = list(inspect.signature(command).parameters.values())
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("verbose", Verbose), ("quiet", Quiet))
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + more
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


class HelpedCommand(TyperCommand):
    """A command whose page fits 80 columns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; a value that another one of the same option would silently replace is refused."""
        given: list[Any] = self.make_parser(ctx).parse_args(list(args))[2]
        for option in given:
            once = option.param_type_name == "option" and not (option.multiple or option.is_flag or option.count)
            if once and given.count(option) > 1:
                raise typer.BadParameter(f"{option.opts[0]} is given more than once: one value of it counts", ctx=ctx)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Answer; what follows may repeat what was said.

        An option of no value is not taken for one that is left out, and that files can be written is known before the
        work for them.
        """
        for option in self.params:
            given = ctx.params.get(option.name)
            if given == "" or (isinstance(given, list | tuple) and "" in given):
                name = option.opts[0] if option.param_type_name == "option" else ""
                if name and ctx.get_parameter_source(option.name).name == "COMMANDLINE":
                    raise typer.BadParameter(f"{name} is empty: give it a value, or leave it out")
        with errors_reported(as_json=bool(ctx.params.get("as_json"))):
            for option in self.params:
                written = ctx.params.get(option.name)
                may_be_folder = ctx.command.callback.__module__.endswith(".checkpoint")
                if option.opts[0] in _WRITTEN and isinstance(written, Path) and not may_be_folder:
                    check_writable(written)
        begin_command(ctx)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        formatter.write("\n".join(_command_page(self, ctx)) + "\n")


class HelpedGroup(TyperGroup):
    """Commands in groups, on a page of 80 columns; what was mistyped is said as other errors are."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that the words of the command line ask for, and leave with its exit code."""
        said = (args, prog_name, complete_var, False, windows_expand_args)
        if not standalone_mode:
            return super().main(*said, **extra)
        try:
            code = super().main(*said, **extra)
        except typer.Abort:
            raise SystemExit(1) from None
        except Exception as error:
            # Of the parser that typer has, by whatever name.
            if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
                raise
            context = getattr(error, "ctx", None)
            if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
                typer.echo(context.get_help(), err=True)
                raise SystemExit(error.exit_code) from None
            words = sys.argv[1:] if args is None else list(args)
            with errors_reported(as_json="--json" in words):
                raise InputError(_mistyped(error), code="command-line.malformed") from None
        raise SystemExit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is typed, or the form of it that its words mean."""
        name, rest = args[0], args[1:]
        if self.name == "trimaran":
            note_old(args)
            meant = form_meant(name, rest, lambda option: self._takes_value(option, name))
            if meant is not None:
                own, rest = meant
                return " ".join(words_of(own)[1:]), self.commands[own], rest
        return super().resolve_command(ctx, args)

    def _takes_value(self, option: str, name: str) -> bool:
        """Whether an option of any form of a command does."""
        commands = [self.commands[one] for one in self.commands if words_of(one)[1] == name]
        params = [one for command in commands for one in command.params if option in one.opts]
        return any(not getattr(one, "is_flag", True) for one in params)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        formatter.write("\n".join(_group_page(self, ctx)) + "\n")


def application(name: str, text: str) -> typer.Typer:
    """A program whose commands have pages of help as here.

    Args:
        name: of the program
        text: what it does
    """
    return typer.Typer(
        name=name,
        cls=HelpedGroup,
        help=text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


_PLAIN = (
    (re.compile(r"Input should be a valid integer\b.*"), "expected a whole number"),
    (re.compile(r"Input should be a valid number\b.*"), "expected a number"),
    (re.compile("Input should be greater than or equal to (.+)"), r"expected \1 or more"),
    (re.compile("Input should be less than or equal to (.+)"), r"expected \1 at most"),
    (re.compile("Input should be "), "expected "),
)
"""What the parser says of a value, and how people say it."""


_CALLED_HERE = (
    (
        "gpus num-gpus ngpus n-gpus gpu-count num-devices n-devices world-size nproc nproc-per-node gpus-per-node",
        ("--devices", "--world", "--ranks"),
        "",
    ),
    ("devices", ("--world",), ""),
    ("world", ("--devices",), ""),
    (
        "nodes num-nodes nnodes n-nodes",
        ("--cluster",),
        "nodes are part of a machine's name, as in --cluster dgx-h100:4",
    ),
    (
        "batch-size bs global-batch-size global-batch gbs train-batch-size total-batch-size",
        ("--batch", "--batches", "--global-batch"),
        "",
    ),
    ("per-device-batch-size per-device-train-batch-size local-batch-size batch-per-gpu", ("--local-batch",), ""),
    (
        "micro-batch-size microbatch-size mbs per-device-batch-size per-device-train-batch-size local-batch-size",
        ("--micro-batch", "--microbatch"),
        "",
    ),
    (
        "gradient-accumulation-steps gradient-accumulation grad-accum accumulation-steps gas num-microbatches",
        ("--microbatches",),
        "",
    ),
    (
        "seq-len seqlen seq-length sequence-length seq context context-length max-seq-len max-length block-size",
        ("--sequence",),
        "",
    ),
    ("dtype mixed-precision amp bf16 fp16 fp8 fp32 tf32 half", ("--precision",), ""),
    ("tensor-parallel tensor-parallel-size tensor-model-parallel-size tp-size tp-degree", ("--tp", "--strategy"), ""),
    ("pipeline-parallel pipeline-parallel-size pipeline-model-parallel-size pp-size", ("--pp", "--strategy"), ""),
    ("data-parallel data-parallel-size data-parallel-replicate-degree dp-size ddp", ("--dp", "--strategy"), ""),
    ("context-parallel context-parallel-size cp-size", ("--cp", "--strategy"), ""),
    ("expert-parallel expert-parallel-size expert-model-parallel-size ep-size", ("--ep", "--strategy"), ""),
    ("zero-stage fsdp fsdp2 deepspeed sharding sharding-strategy", ("--zero", "--strategy"), ""),
    (
        "activation-checkpointing gradient-checkpointing checkpointing recomputation recompute-granularity ac",
        ("--recompute", "--strategy"),
        "",
    ),
    (
        "offload cpu-offload optimizer-offload",
        ("--allow",),
        "the optimizer's state on the host: --allow optimizer-offload",
    ),
    ("optim optimizer", ("--optimizer-state",), ""),
    ("hardware machine system accelerator gpu gpu-type device", ("--cluster",), ""),
    ("hardware machine system accelerator gpu gpu-type cluster", ("--device",), ""),
    ("gpu-memory vram mem max-memory memory-budget", ("--memory", "--budget"), ""),
    ("out output-file output-dir save", ("--output",), ""),
    ("num-epochs num-train-epochs max-epochs", ("--epochs", "--max-epochs"), ""),
    ("train-tokens num-tokens total-tokens", ("--tokens",), ""),
    ("format target framework", ("--to",), ""),
    ("model model-name network job arch", (), "the job stands without an option, first: trimaran COMMAND JOB"),
    ("lr learning-rate", (), "the learning rate is one of the job's optimizer"),
)
"""What options are called elsewhere, what they are called here (the first that a command has), and another answer."""

_SAMPLES = "; samples are counted, sequences of a language model: 4,194,304 tokens in sequences of 8,192 are 512"
_COUNTS_SAMPLES = frozenset({"--batch", "--local-batch", "--micro-batch"})


def _unknown_option(name: str, options: Collection[str]) -> str:
    """That a command has no such option, and which one it has.

    Args:
        name: as it was typed
        options: that the command has
    """
    typed = name.lower().replace("_", "-").strip("-")
    for spellings, here, instead in _CALLED_HERE:
        meant = next((one for one in here if one in options), "")
        if typed in spellings.split() and (meant or not here):
            return f"no option {name}: {instead or f'it is {meant} here'}"
    begun = [option for option in options if option.startswith(name)]
    near = begun if len(begun) == 1 else difflib.get_close_matches(name, options, n=1, cutoff=0.75)
    return f"no option {name}" + (f"; did you mean {near[0]}?" if near else "")


def _mistyped(error: Any) -> str:
    """What is wrong with a command line, and where it says what is right."""
    context = getattr(error, "ctx", None)
    said: str = error.format_message()
    if context is None:
        return said
    if type(error).__name__ == "NoSuchOption":
        options = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        said = _unknown_option(error.option_name, options)
    for pattern, plain in _PLAIN:
        said = pattern.sub(plain, said)
    asked = getattr(getattr(error, "param", None), "opts", ("",))[0]
    if asked in _COUNTS_SAMPLES and said.endswith("expected a whole number"):
        said += _SAMPLES
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.+)\)", said.replace("(s)", ""))
    if extra and any("--strategy" in option.opts for option in context.command.params):
        with contextlib.suppress(InputError):
            from trimaran.program.strategy import read_strategy

            read_strategy(extra[1])
            said = f'a strategy stands behind its option: --strategy "{extra[1]}"'
    return f"{said}\n`{context.command_path} --help` says what it takes"


def _width() -> int:
    return min(WIDTH, screen_size()[0])


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _entry(term: str, text: str, *, column: int) -> Iterator[str]:
    """A term and its text in two columns; a long term stands in a separate line."""
    lines = _wrap(text, " " * (column + 2)) or [""]
    if len(term) + 2 <= column:
        yield f"  {term:<{column}}{lines[0].lstrip()}"
        yield from lines[1:]
    else:
        yield f"  {term}"
        yield from lines


def _command_page(command: Any, ctx: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    helping = command.get_help_option(ctx)
    options += [] if helping is None or helping in options else [helping]
    yield " ".join(["Usage:", ctx.command_path, *(_place(one) for one in arguments), "[OPTIONS]"])
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield ""
        yield from _wrap(paragraph)
    if arguments:
        yield "\nArguments:"
        for one in arguments:
            yield from _entry(_place(one).replace("[", "").replace("]", ""), one.help or "", column=_TERM)
    if forms := [*forms_of(ctx.info_name or "")]:
        yield "\nAlso, each with a page of help:"
        for form in forms:
            yield from _entry(f"{ctx.info_name} {form.usage}", form.text, column=_TERM)
    kinds = _kinds(command.callback)
    for heading, shown in _sections(command.name or "", options):
        yield f"\n{heading}:"
        for option in shown:
            yield from _entry(_term(option, kinds), _said(option), column=_TERM)


def _place(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    optional = not argument.required and not name.startswith("[")
    return f"[{name}]" if optional else str(name)


def _kinds(callback: Callable[..., None] | None) -> dict[str, tuple[Any, ...]]:
    """Types that each parameter may have."""
    if callback is None:
        return {}
    found = {}
    for name, parameter in inspect.signature(callback).parameters.items():
        plain = (get_args(parameter.annotation) or (parameter.annotation,))[0]
        found[name] = (plain, *get_args(plain))
    return found


def _term(option: Any, kinds: Mapping[str, tuple[Any, ...]]) -> str:
    """Names of an option and what it takes, such as "--devices, -n N"."""
    names = sorted(option.opts, key=len, reverse=True)
    if option.secondary_opts:
        return f"{'/'.join([names[0], *option.secondary_opts])}"
    spelled = ", ".join(names)
    if option.is_flag:
        return spelled
    return f"{spelled} {option.metavar or _taken(kinds.get(option.name, ()))}"


def _taken(kinds: Sequence[Any]) -> str:
    choices = next((one for one in kinds if isinstance(one, type) and issubclass(one, Enum)), None)
    if choices is not None:
        return "|".join(str(one.value) for one in choices)
    if int in kinds or float in kinds:
        return "N"
    return "FILE" if Path in kinds else "TEXT"


def _said(option: Any) -> str:
    """The help of an option, with its default where it has one."""
    text = str(option.help or "")
    default, shown = option.default, option.show_default
    if isinstance(shown, str):
        return f"{text}  [default: {shown}]"
    if shown is False or default is None or callable(default) or isinstance(default, bool) or default in ("", (), []):
        return text
    # Values that stand for "nothing was given" have no words.
    if not isinstance(default, str | int | float | Enum):
        return text
    return f"{text}  [default: {default.value if isinstance(default, Enum) else default}]"


_OWN_COMMON: Mapping[str, Sequence[str]] = {
    "plan": (
        *("--cluster", "--devices", "--batch", "--precision", "--memory", "--objective", "--strategy", "--forbid"),
        *("--output", "--json"),
    ),
    "scale": (
        *("--cluster", "--devices", "--batch", "--local-batch", "--precision", "--sync", "--software", "--measured"),
        *("--plot", "--json"),
    ),
    "memory": (
        *("--device", "--local-batch", "--budget", "--precision", "--policy", "--largest-batch", "--split", "--chart"),
        *("--trace", "--json"),
    ),
    "train": (
        *("--devices", "--batch", "--epochs", "--plan", "--memory", "--strategy", "--save-every", "--resume"),
        *("--runs", "--json"),
    ),
}
"""Common options of commands whose order differs."""


def _name(option: Any) -> str:
    return str(max(option.opts, key=len))


def _sections(command: str, options: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Headings with their options, the common ones first."""
    printed = [one for one in options if _name(one) in _PRINTED and _name(one) != "--json"]
    rest = [one for one in options if one not in printed]
    if len(rest) <= _FEW:
        yield "Options", [*rest, *_in_order(printed, _PRINTED)]
        return
    first = _OWN_COMMON.get(command, _FIRST)
    by_order = _in_order([one for one in rest if _name(one) in first], first)
    # Whatever else is common, a program asks for JSON.
    common = [*[one for one in by_order if _name(one) != "--json"][: COMMON - 1]]
    common += [one for one in by_order if _name(one) == "--json"]
    yield "Common options", common
    left = [one for one in rest if one not in common]
    own = _OWN_HEADINGS.get(command, {})
    for heading, names in _HEADINGS.items():
        taken = [one for one in left if own.get(_name(one), heading if _name(one) in names else "") == heading]
        left = [one for one in left if one not in taken]
        if taken:
            yield heading, _in_order(taken, names)
    if left:
        yield OTHERS, left
    yield _LAST, _in_order(printed, _PRINTED)


OTHERS = "Other options"
"""Heading of options that no heading has; no command of this package has any."""


def _in_order(options: Iterable[Any], names: Sequence[str]) -> list[Any]:
    places = {name: place for place, name in enumerate(names)}
    return sorted(options, key=lambda one: places.get(_name(one), len(places)))


def _is_shown(what: Any) -> bool:
    return not getattr(what, "hidden", False)


def _group_page(group: Any, ctx: Any) -> Iterator[str]:
    commands = {name: group.get_command(ctx, name) for name in group.list_commands(ctx)}
    commands = {name: one for name, one in commands.items() if one is not None and _is_shown(one)}
    yield f"Usage: {ctx.command_path} COMMAND [OPTIONS]\n"
    yield from _wrap(group.help or "")
    known = GROUPS if group.name == "trimaran" else {}
    listed = {name: heading for heading, entries in known.items() for name in entries}
    last = list(known)[-1] if known else "Commands"
    for heading in known or (last,):
        yield f"\n{heading}:"
        first = [(name, text) for name, text in known.get(heading, {}).items() if name in commands]
        more = [
            (name, inspect.cleandoc(command.help or "").split("\n\n")[0])
            for name, command in commands.items()
            if name not in listed and heading == last
        ]
        for name, text in (*first, *more):
            yield from _entry(name, text, column=12)
    yield "\nOptions:"
    options = [one for one in group.params if one.param_type_name == "option" and not one.hidden]
    helping = group.get_help_option(ctx)
    for option in [*options, *([] if helping is None or helping in options else [helping])]:
        yield from _entry(", ".join(sorted(option.opts, key=len, reverse=True)), option.help or "", column=12)
    if known:
        yield ""
        yield from _wrap("`trimaran COMMAND --help` explains a command. First steps: `trimaran train digits`.")
