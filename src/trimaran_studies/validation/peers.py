"""Other predictors of sharded transformers, on the rows that ours predicts: run at pinned commits from a folder.

The folder has a checkout of each peer under its name. Nothing of theirs is copied: tables that they publish with their
program are read from the checkout, and a peer of another commit is refused, because its figures would be others.

    calculon        calculon-ai/calculon: run on rows; the table by which it is validated (A100), run
    SimuMax         MooreThreads/SimuMax: the table of its release on B200, with its figures next to the measured ones
    llm-analysis    cli99/llm-analysis: run on rows

Rows that a peer cannot express are left out of its line, and ours is scored on the same rows.

Source:
    Korthikanti et al., arXiv:2205.05198, 2022, table 5 (what Calculon's validation compares with).
"""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.base.decoding import decode_object
from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.files import read_text
from trimaran.machine.find import find_machine
from trimaran.machine.types import Machine
from trimaran.planner.analytical.search import transformer_problem
from trimaran.pricing.analytical.memory import Bookkeeping, largest_rank
from trimaran.pricing.analytical.programs import training_program
from trimaran.pricing.analytical.shapes import TransformerShape, decoder_of, gpt_shape
from trimaran.pricing.analytical.step_time import TransformerProgram
from trimaran.program.strategy import Degrees
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.model_parallel import (
    TransformerRun,
    in_unit,
    machine_of,
    run_step,
    transformer_run,
)

COMMITS: Mapping[str, str] = {
    "calculon": "caa4b11f8fe1fee3ba57adaacb7590d7deabd053",
    "SimuMax": "4dcaae513ba7679d56c116a17cd4a691ec41e252",
    "llm-analysis": "d841e40aec8c84b9e76ba9cfbce67418adb172bd",
}
"""The commit of each peer whose figures are compared."""

_LIMIT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLine:
    """A peer and ours on the same rows.

    Attributes:
        peer: name
        rows: which ones, in words
        count: how many
        theirs: median of their absolute errors
        ours: the same of ours
    """

    peer: str
    rows: str
    count: int
    theirs: float
    ours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A measured run: what is known of it, its time [s], and what a peer says of it; None: it says nothing."""

    run: TransformerRun
    machine: Machine
    measured: float
    theirs: float | None = None
    peak_bytes: float | None = None
    their_peak_bytes: float | None = None


def compare_peers(folder: Path, rows: Mapping[str, Sequence[Row]]) -> tuple[PeerLine, ...]:
    """Lines of all peers in a folder.

    Args:
        folder: with checkouts by name
        rows: of sharded transformers, by source; those without known degrees are left out

    Raises:
        InputError: there is none of them, or one is of another commit
        EnvironmentProblem: a peer cannot be run
    """
    found = [name for name in COMMITS if (folder / name).is_dir()]
    if not found:
        raise InputError(
            f"{folder} has no checkout of {', '.join(COMMITS)}: clone them there at the commits that "
            "trimaran_studies/validation/peers.py names",
            code="planbench.no-peers",
            path=str(folder),
        )
    for name in found:
        _check_commit(folder / name, COMMITS[name])
    cases = {source: list(_cases_of(each)) for source, each in rows.items()}
    lines: list[PeerLine] = []
    if "calculon" in found:
        table = list(_calculon_table(folder / "calculon"))
        lines += _time_line("calculon", "the table of it, A100", _asked("calculon", folder, table))
    if "SimuMax" in found:
        table = list(_simumax_table(folder / "SimuMax"))
        lines += _time_line("SimuMax", "the table of it, B200", table)
        lines += _memory_line("SimuMax", "the table of it, B200: memory", table)
    for name in ("calculon", "llm-analysis"):
        if name in found:
            for source, each in cases.items():
                lines += _time_line(name, source, _asked(name, folder, each))
    return tuple(lines)


def _check_commit(checkout: Path, expected: str) -> None:
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    found = done.stdout.strip()
    if found != expected:
        raise InputError(
            f"{checkout} is at {found or 'no commit'}, and its figures are those of {expected}: check that commit out",
            code="planbench.other-commit",
            path=str(checkout),
            found=found,
            expected=expected,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Cases


def _cases_of(rows: Iterable[Row]) -> Iterator[_Case]:
    for row in rows:
        if row.flag or row.family != "mp_step_time":
            continue
        try:
            run = transformer_run(row)
            machine = machine_of(run)
            unit_s = in_unit(row, run, run_step(run, machine)) / run_step(run, machine).seconds
        except InputError:
            continue
        if run.shape.experts is None:
            yield _Case(run=run, machine=machine, measured=row.measured / unit_s)


def _calculon_table(checkout: Path) -> Iterator[_Case]:
    """Steps of Korthikanti et al. on A100, as Calculon's validation has them."""
    text = read_text(checkout / "calculon/llm/validation.py")
    table = text[text.index("def seqsel_tab5") :]
    network = ""
    for name, value in re.findall(r"'([\w-]+)': ([\d.]+|\{)", table):
        if value == "{":
            network = name
        elif name in ("full", "seqsel"):
            application, execution = (
                decode_object(read_text(path), source=str(path))
                for path in (
                    checkout / "models" / f"{network}.json",
                    checkout / f"validation/seqsel/tab5/{network}_{name}.json",
                )
            )
            yield _calculon_case(application, execution, float(value))


def _calculon_case(application: Mapping[str, int], execution: Mapping[str, int | str], measured: float) -> _Case:
    figures = {name: int(value) for name, value in execution.items() if isinstance(value, int)}
    shape = gpt_shape(
        layers=application["num_blocks"],
        hidden=application["hidden"],
        heads=application["attn_heads"],
        vocabulary=51200,
        sequence=application["seq_size"],
    )
    degrees = Degrees(
        tp=figures["tensor_par"],
        pp=figures["pipeline_par"],
        dp=figures["data_par"],
        chunks=figures["pipeline_interleaving"],
        microbatch=figures["microbatch_size"],
        microbatches=figures["batch_size"] // (figures["data_par"] * figures["microbatch_size"]),
        sequence_parallel=execution["tensor_par_comm_type"] == "rs_ag",
        recomputed=frozenset({"layers"} if execution["activation_recompute"] == "full" else {"attention"}),
    )
    machine = find_machine(f"dgx-a100:{max(1, degrees.devices // 8)}")
    program = training_program("megatron", 2022.4, device=machine.node.device, precision="fp16")
    return _Case(run=_run(shape, degrees, program, machine, "A100"), machine=machine, measured=measured)


_SIMUMAX_NAME = re.compile(r"llama3_(?P<size>70b|405b)_(?P<rest>\w+)_mbc(?P<count>\d+)_cef")


def _simumax_table(checkout: Path) -> Iterator[_Case]:
    """Steps and peaks of decoders like Llama on eight B200, with the figures of SimuMax.

    They ran without exchanges that overlap (docs/b200/b200_real_repro_guide.md, section 3.3, and
    simu_tools/megatron_scripts/scripts/run_pretrain_llama3.sh of the checkout).
    """
    text = read_text(checkout / "docs/b200/b200_release_v1.2_summary.md")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        named = _SIMUMAX_NAME.fullmatch(cells[0])
        if named is None:
            continue
        said = {word: int(value) for word, value in re.findall(r"(tp|pp|dp|cp|l|seq)(\d+)", named["rest"])}
        published = decoder_of(f"llama3:{named['size']}", said.get("seq", 4096))
        if published is None:
            continue
        count, context = int(named["count"]), said.get("cp", 1)
        degrees = Degrees(
            tp=said["tp"],
            pp=said["pp"],
            cp=context,
            dp=8 // (said["tp"] * said["pp"] * context),
            microbatches=count,
            sequence_parallel=said["tp"] > 1,
            zero=1,
            tensor_overlap=False,
        )
        machine = find_machine("dgx-b200")
        shape = replace(published, layers=said["l"])
        program = replace(transformer_problem(shape, machine, batch=degrees.dp * count).program, overlaps=False)
        yield _Case(
            run=_run(shape, degrees, program, machine, "B200"),
            machine=machine,
            measured=float(cells[2]) / 1e3,
            theirs=float(cells[3]) / 1e3,
            peak_bytes=float(cells[5]) * 2**30,
            their_peak_bytes=float(cells[6]) * 2**30,
        )


def _run(
    shape: TransformerShape, degrees: Degrees, program: TransformerProgram, machine: Machine, device: str
) -> TransformerRun:
    return TransformerRun(
        shape=shape,
        degrees=degrees,
        program=program,
        device=device,
        machine=machine.node.name,
        devices=degrees.devices,
        nodes=machine.nodes,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Runs and lines


def _asked(peer: str, folder: Path, cases: Sequence[_Case]) -> list[_Case]:
    """The cases with what a peer says of them, all in one process.

    Raises:
        EnvironmentProblem: it ends with an error
    """
    if not cases:
        return []
    script = Path(__file__).with_name("peer_runs.py")
    try:
        done = subprocess.run(
            [sys.executable, str(script), peer, str(folder / peer)],
            input=json.dumps([_written(case) for case in cases]),
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        reason = done.stderr.strip().rpartition("\n")[2] or "no message"
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_LIMIT_S} s"
    else:
        if not done.returncode:
            seconds = json.loads(done.stdout)
            return [replace(case, theirs=one) for case, one in zip(cases, seconds, strict=True)]
    raise EnvironmentProblem(f"{peer} cannot be run: {reason}", code="planbench.peer-fails", peer=peer)


def _written(case: _Case) -> dict[str, object]:
    shape, degrees = case.run.shape, case.run.degrees
    device = case.machine.node.device.name.upper()
    return {
        "device": next((name for name in ("A100", "H100", "V100") if name in device), device),
        "node": case.machine.node.devices,
        "devices": degrees.devices,
        "layers": shape.layers,
        "width": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "ffn": shape.ffn,
        "vocabulary": shape.vocabulary,
        "sequence": shape.sequence,
        "gated": shape.gated,
        "tp": degrees.tp,
        "pp": degrees.pp,
        "dp": degrees.dp,
        "cp": degrees.cp,
        "chunks": degrees.chunks,
        "zero": degrees.zero,
        "microbatch": degrees.microbatch,
        "microbatches": degrees.microbatches,
        "batch": degrees.dp * degrees.microbatch * degrees.microbatches,
        "sequence_parallel": degrees.sequence_parallel,
        "recompute": next(iter(degrees.recomputed), ""),
        "fused_attention": case.run.program.attention != "math",
    }


def _time_line(peer: str, rows: str, cases: Iterable[_Case]) -> Iterator[PeerLine]:
    known = [(case, case.theirs) for case in cases if case.theirs is not None]
    if known:
        yield PeerLine(
            peer=peer,
            rows=rows,
            count=len(known),
            theirs=statistics.median(abs(theirs / case.measured - 1.0) for case, theirs in known),
            ours=statistics.median(abs(_our_seconds(case) / case.measured - 1.0) for case, _ in known),
        )


def _memory_line(peer: str, rows: str, cases: Iterable[_Case]) -> Iterator[PeerLine]:
    known = [
        (_our_peak(case) / case.peak_bytes - 1.0, case.their_peak_bytes / case.peak_bytes - 1.0)
        for case in cases
        if case.peak_bytes is not None and case.their_peak_bytes is not None
    ]
    if known:
        yield PeerLine(
            peer=peer,
            rows=rows,
            count=len(known),
            theirs=statistics.median(abs(theirs) for _, theirs in known),
            ours=statistics.median(abs(ours) for ours, _ in known),
        )


def _our_seconds(case: _Case) -> float:
    return run_step(case.run, case.machine).seconds


def _our_peak(case: _Case) -> float:
    # Transformer Engine's loss puts the gradient in the place of the logits.
    keeping = Bookkeeping(
        attention=case.run.program.attention,
        logit_bytes=2,
        keeps_weight_gradients=case.run.program.keeps_weight_gradients,
    )
    return float(largest_rank(case.run.shape, case.run.degrees, bookkeeping=keeping).peak)
