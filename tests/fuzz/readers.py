"""Everything that reads a file, with small real files of its kind.

A module that reads a file is named by one reader here (`modules`), or by `INTERNAL` with the reason why a person's file
never gets there. `test_readers` looks for those that are not.
"""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of file and what reads it.

    Attributes:
        modules: of `src` whose calls read it
        file_name: that it has in a test
        form: of the content, as `mutate` takes it
        seeds: makes files that are read without an error
        read: the entry point, and the first use of what it gives
        seal: writes the digest anew behind a mutation, where a file has one
    """

    modules: tuple[str, ...]
    file_name: str
    form: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Path], object]
    seal: Callable[[bytes], bytes] | None = None


_made: dict[str, tuple[bytes, ...]] = {}


def seeds_of(reader: str) -> tuple[bytes, ...]:
    """The seeds of a reader, made once."""
    if reader not in _made:
        _made[reader] = tuple(READERS[reader].seeds())
    return _made[reader]


def seeds_by_reader() -> dict[str, tuple[bytes, ...]]:
    """The seeds of all readers, for `take_seeds` in another process."""
    return {name: seeds_of(name) for name in READERS}


def take_seeds(made: Mapping[str, tuple[bytes, ...]]) -> None:
    """Use the seeds that another process has made, which takes imports that reading does not."""
    _made.update(made)


@functools.cache
def all_seeds() -> tuple[bytes, ...]:
    """The seeds of all readers."""
    return tuple(content for seeds in seeds_by_reader().values() for content in seeds)


def _files(*patterns: str) -> Sequence[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted((ROOT / "tests").glob(pattern))]


def _plain(value: object) -> bytes:
    return json.dumps(value).encode()


# ---------------------------------------------------------------------------------------------------------------------
# Plans and programs


def _plans() -> Sequence[bytes]:
    from tests.unit.program.test_plan_file import PLAN

    from trimaran.program.plan_file import format_plan

    return [format_plan(PLAN).encode(), *_files("unit/program/files/*.json")]


def _without_digest(content: bytes) -> bytes:
    return re.sub(rb'"digest": "[0-9a-f]*",?\s*', b"", content)


def _read_plan(path: Path) -> object:
    from trimaran.program.plan_file import format_plan, read_plan

    return format_plan(read_plan(path))


def _read_measured(path: Path) -> object:
    from trimaran.planning.measured_jobs import read_measured

    return read_measured(str(path))


def _read_factors(path: Path) -> None:
    from trimaran.rehearsal.prices import read_calibration

    read_calibration(path)


def _read_program_text(path: Path) -> object:
    from trimaran.base.files import read_text
    from trimaran.program.rules.check import check_program
    from trimaran.program.text import parse_program

    check_program(program := parse_program(read_text(path), source=str(path)))
    return program


# ---------------------------------------------------------------------------------------------------------------------
# Costs and calibrations


def _costs() -> Sequence[bytes]:
    from tests.builders import network, table_for

    from trimaran.pricing.table_files import encode_table

    measured = (content for content in _files("golden/costs/*.json") if b'"table"' in content)
    return [encode_table(table_for(network(2), whole_s=0.5)), min(measured, key=len)]


def _seal_table(content: bytes) -> bytes:
    import msgspec

    try:
        plain = json.loads(content)
        body = msgspec.json.format(json.dumps(plain.pop("table")).encode(), indent=-1)
        head = json.dumps({**plain, "digest": hashlib.sha256(body).hexdigest()}).encode()
        return head[:-1] + b', "table": ' + body + b"}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError, OverflowError):
        return content


def _read_table(path: Path) -> object:
    from trimaran.base.files import read_bytes
    from trimaran.pricing.table_files import decode_table, encode_table

    return encode_table(decode_table(read_bytes(path), origin=str(path)))


def _read_cached(path: Path) -> object:
    import trimaran.measure.cache as cache
    from trimaran.pricing.table_files import decode_table

    fingerprint = decode_table(_costs()[0]).fingerprint
    kept = cache.cache_path(fingerprint)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.unlink(missing_ok=True)
    path.rename(kept)
    return cache.load_cached(fingerprint)


def _calibrations() -> Sequence[bytes]:
    from tests.unit.measure.calibrations import calibration

    from trimaran.measure.calibration.results import encode_calibration

    return [encode_calibration(calibration())]


def _seal_calibration(content: bytes) -> bytes:
    import msgspec

    try:
        plain = msgspec.json.decode(content)
        rest = {key: value for key, value in plain.items() if key not in ("schema_version", "digest")}
        plain["digest"] = hashlib.sha256(msgspec.json.encode(rest)).hexdigest()
        return msgspec.json.encode(plain)
    except (ValueError, AttributeError, RecursionError, msgspec.MsgspecError, OverflowError):
        return content


def _read_calibration(path: Path) -> object:
    from tests.builders import HERE

    from trimaran.base.errors import InputError
    from trimaran.measure.calibration.results import check_machine, encode_calibration, read_calibration

    calibration = read_calibration(path)
    with contextlib.suppress(InputError):
        check_machine(calibration, HERE, source=str(path))
    return encode_calibration(calibration)


def _kept_workloads() -> Sequence[bytes]:
    import msgspec
    from tests.graphs import chain

    return [msgspec.msgpack.encode(chain(3)), msgspec.msgpack.encode(chain(2, buffers=True))]


def _read_kept(path: Path) -> object:
    from trimaran.planning.tracing.request import TraceRequest
    from trimaran.planning.tracing.workloads import GRAPHS

    request = TraceRequest(reference="digits", precision="fp32", optimizer="")
    kept = GRAPHS.path(request)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.unlink(missing_ok=True)
    path.rename(kept)
    graph = GRAPHS.load(request)
    return None if graph is None else graph.digest


# ---------------------------------------------------------------------------------------------------------------------
# Machines


def _machines() -> Sequence[bytes]:
    from tests.unit.machine.test_user_files import EXAMPLE

    from trimaran.machine.catalog import find_node
    from trimaran.machine.machine_files import node_text

    like = '[[nodes]]\nname = "mine"\nlike = "dgx1-v100"\nsource = "a guess"\n[machine]\nnode = "mine"\nnodes = 4\n'
    whole = "[machine]\nnodes = 2\nfabric = '4 ib-edr'\n\n" + node_text(find_node("dgx1-v100"))
    return [EXAMPLE.encode(), like.encode(), whole.encode()]


def _read_machine(path: Path) -> object:
    from trimaran.machine.find import find_machine
    from trimaran.report.machines import node_line

    return node_line(find_machine(str(path)).node)


def _imports() -> Sequence[bytes]:
    from tests.unit.machine.test_imports import MESH, SWITCHED, XML

    return [MESH.encode(), SWITCHED.encode(), XML.encode()]


def _read_import(path: Path) -> object:
    from trimaran.machine.machine_files import import_node, node_text, read_machine

    node = import_node(path, "a100", "ib-hdr")
    read_machine(node_text(node), file="again.toml")
    return import_node(path, "a100")


def _nccl_logs() -> Sequence[bytes]:
    from tests.unit.pricing.test_nccl_logs import NEW, OLD

    return [OLD.encode(), NEW.encode()]


def _read_nccl_log(path: Path) -> object:
    from trimaran.machine.find import find_machine
    from trimaran.pricing.collectives.algorithms import collective_cost
    from trimaran.pricing.collectives.corrections import corrected_by, read_logs

    machine = find_machine("dgx-a100:2")
    correction = corrected_by(read_logs(path, op="all_reduce"), machine=machine)
    del collective_cost
    return correction


# ---------------------------------------------------------------------------------------------------------------------
# Traces and records


def _profiles() -> Sequence[bytes]:
    from tests.unit.pricing.kernels.test_profiles import EVENTS

    about = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}}
    return [_plain({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [about, *EVENTS]})]


def _packed_profiles() -> Sequence[bytes]:
    return [gzip.compress(content, mtime=0) for content in _profiles()]


def _read_profile(path: Path) -> object:
    from trimaran.pricing.kernels.corrections import read_kineto

    return read_kineto(path).device_s


def _records() -> Sequence[bytes]:
    import sys

    sys.path.append(str(ROOT / "src/trimaran/measure/observe/on-path"))
    from tests.unit.measure.observe import observed

    seen: list[dict[str, Any]] = []
    step = {"load": 1, "forward": 3, "backward": 6, "update": 1, "samples": 32, "backwards": 1}
    kept, observed.parse_record = observed.parse_record, lambda plain, source: seen.append(dict(plain))  # type: ignore[assignment]
    try:
        again = {"factors": [1, 2], "durations_s": [[1e-2] * 6, [1.8e-2] * 6]}
        observed.make_record([step] * 30, again=again)
        loader = {"workers": 2, "iterable": False, "batch_size": 32, "prefetch_factor": 2}
        loader |= {"persistent_workers": False, "pin_memory": False}
        place = {"kind": "sync", "line": "train.py:12", "function": "step", "library": False, "calls": 30, "ns": 10**6}
        about = {"python": "3.11.9", "torch": "2.12.0", "places": [place]}
        observed.make_record([step] * 30, again=None, loader=loader, **about)
    finally:
        observed.parse_record = kept
    return [_plain(record) for record in seen]


def _read_records(path: Path) -> object:
    from trimaran.features.diagnose import observe
    from trimaran.measure.observe.records import read_records
    from trimaran.program.json_files import to_plain

    for old in path.parent.glob("*.json"):
        if old != path:
            old.unlink()
    # What is measured here takes a process of its own each time.
    observe.measure_handover = lambda nbytes: nbytes * 1e-9
    return to_plain(observe.conclude(read_records(path.parent)))


# ---------------------------------------------------------------------------------------------------------------------
# Jobs, graphs, weights


def _configurations() -> Sequence[bytes]:
    from tests.unit.jobs.test_configured import BERT, RESNET, T5, VIT

    llama = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "vocab_size": 64,
        "max_position_embeddings": 32,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
    }
    return [_plain(values) for values in (llama, BERT, RESNET, T5, VIT)]


def _read_configuration(path: Path) -> object:
    from trimaran.jobs.huggingface import configured_job

    job = configured_job(str(path))
    return job.name, len(job.dataset()[0])


def _profiled_graphs() -> Sequence[bytes]:
    nodes = [
        {"id": f"n{number}", "op": "Linear", "forward_ms": 1.0 + number, "backward_ms": 2.0, "activation_bytes": 64}
        for number in range(6)
    ]
    edges = [[f"n{number}", f"n{number + 1}"] for number in range(5)] + [["n0", "n3"]]
    return [_plain({"nodes": nodes, "edges": edges})]


def _read_profiled(path: Path) -> object:
    from trimaran.graph.profiled import read_profiled

    return read_profiled(path)


def _weights() -> Sequence[bytes]:
    from safetensors.torch import save

    model = _small_model()
    return [save({name: tensor.clone() for name, tensor in model.state_dict().items()}, metadata={"format": "pt"})]


def _small_model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def _seal_weights(content: bytes) -> bytes:
    """The length of the header anew, as far as it is JSON."""
    try:
        _, end = json.JSONDecoder().raw_decode(content[8:].decode("latin-1"))
    except (ValueError, RecursionError):
        return content
    return struct.pack("<Q", end) + content[8:]


def _read_weights(path: Path) -> object:
    from tests.weights import read_weights

    read_weights(_small_model(), path)
    return None


def _trained() -> Any:
    """A model and its optimizer after a step."""
    import torch

    model = _small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


@functools.cache
def _archives() -> Sequence[bytes]:
    import io

    import torch

    model, optimizer = _trained()
    found = []
    for state in (model.state_dict(), {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}):
        stream = io.BytesIO()
        torch.save(state, stream)
        found.append(stream.getvalue())
    return found


def _read_archive(path: Path) -> object:
    from trimaran.checkpoint_files.imports import open_content

    return _read_all(open_content(path, trust_pickle=True))


def _pickles() -> Sequence[bytes]:
    import io
    import zipfile

    found = []
    for content in _archives():
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found.append(archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl"))))
    return found


def _read_pickle(path: Path) -> object:
    """An archive with this pickle, whose checksums are right."""
    import zipfile

    from trimaran.base.files import read_bytes

    pickled, whole = read_bytes(path), path.with_name("weights.pt")
    original = path.with_name("original.pt")
    original.write_bytes(_archives()[1])
    with zipfile.ZipFile(original) as before, zipfile.ZipFile(whole, "w") as after:
        for name in before.namelist():
            after.writestr(name, pickled if name.endswith("data.pkl") else before.read(name))
    return _read_archive(whole)


def _read_all(content: Any) -> object:
    with content:
        content.verify()
        kept = content.optimizer
        weights = [content.read(name) for name in content.forms]
        states = [] if kept is None else [kept.value(one, key) for one, of in kept.states.items() for key in of]
    return weights, states


@functools.cache
def _dcp() -> Mapping[str, bytes]:
    """The files of a directory of torch.distributed.checkpoint."""
    import tempfile
    import warnings

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer = get_state_dict(*_trained())
        dcp.save({"model": model, "optim": optimizer}, checkpoint_id=folder, no_dist=True)
        return {one.name: one.read_bytes() for one in Path(folder).iterdir()}


def _chunk() -> bytes:
    """The first chunk of a directory of torch.distributed.checkpoint."""
    content = _dcp()["__0_0.distcp"]
    return content[: content.find(b"PK\x05\x06") + 22]


def _read_chunk(path: Path) -> object:
    """A directory of which the first chunk is this one, as its metadata say."""
    import io
    import pickle

    from trimaran.base.files import read_bytes

    metadata, chunk, content = pickle.loads(_dcp()[".metadata"]), read_bytes(path), _dcp()["__0_0.distcp"]  # noqa: S301
    more = len(chunk) - len(_chunk())
    for index, info in metadata.storage_data.items():
        first = info.offset == 0
        metadata.storage_data[index] = dataclasses.replace(
            info, offset=info.offset + (0 if first else more), length=info.length + (more if first else 0)
        )
    file = io.BytesIO()
    pickle.dump(metadata, file)
    files = {".metadata": file.getvalue(), "__0_0.distcp": chunk + content[len(_chunk()) :]}
    return _read_folder(lambda: files, path)


@functools.cache
def _shards() -> Mapping[str, bytes]:
    """The files of a Hugging Face folder in shards."""
    from safetensors.torch import save

    state = _small_model().state_dict()
    names = list(state)
    halves = {"a.safetensors": names[:4], "b.safetensors": names[4:]}
    places = {name: file for file, of in halves.items() for name in of}
    files = {file: save({name: state[name].clone() for name in of}) for file, of in halves.items()}
    return files | {"model.safetensors.index.json": _plain({"metadata": {"total_size": 9}, "weight_map": places})}


def _read_folder(files: Callable[[], Mapping[str, bytes]], path: Path) -> object:
    """The folder of a file, which has the other files too."""
    from trimaran.checkpoint_files.imports import open_content

    # Other readers were here before.
    for name in (*_dcp(), *_shards(), "model.safetensors", "pytorch_model.bin", "config.json"):
        if name != path.name:
            (path.parent / name).unlink(missing_ok=True)
    for name, content in files().items():
        if name != path.name:
            (path.parent / name).write_bytes(content)
    return _read_all(open_content(path.parent, trust_pickle=True))


def _read_copied_configuration(path: Path) -> object:
    from trimaran.features.checkpoints import read_config

    return read_config(path)


# ---------------------------------------------------------------------------------------------------------------------
# Curves, runs, published rows


def _curves(suffix: str) -> Sequence[bytes]:
    import tempfile

    from trimaran.convergence.files import find_curve, write_curve

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"curve.{suffix}"
        found = []
        for name in ("resnet50", "bert-large"):
            write_curve(path, find_curve(name).table)
            found.append(path.read_bytes())
        return found


_TABLE = (
    b"global_batch,epochs,run,target,samples_per_epoch\n64,4.0,a,0.97,1000\n64,4.2,b,0.97,1000\n128,5.1,c,0.97,1000\n"
)
_TABLE_2 = b"batch;steps;reached\n64;100,5;yes\n128;60;yes\n256;40;no\n"


def _read_curve(path: Path) -> object:
    from trimaran.convergence.files import read_curve

    curve = read_curve(path)
    return curve.table


def _runs() -> Sequence[bytes]:
    from trimaran.measure.convergence.runs import TrainingRun
    from trimaran.program.json_files import to_plain

    runs = [
        TrainingRun(
            end="reached",
            epochs=2.0,
            samples=2000,
            updates=40,
            seconds=1.5,
            evaluations=((1.0, 0.5), (2.0, 0.9)),
            batch=50,
            seed=seed,
            noise=None,
        )
        for seed in (0, 1)
    ]
    return ["".join(json.dumps(to_plain(run)) + "\n" for run in runs).encode()]


def _read_runs(path: Path) -> object:
    from trimaran.measure.convergence.runs import find_run, read_runs

    runs = read_runs(path.parent)
    return find_run(runs, batch=50, seed=0, target=0.9, most=10.0), [run.best for run in runs]


def _read_target(path: Path) -> object:
    from trimaran.features.convergence.task import read_target

    return read_target(path)


def _rows() -> Sequence[bytes]:
    head, *rows = (ROOT / "src/trimaran_studies/published/rows.csv").read_bytes().splitlines(keepends=True)
    return [head + b"".join(rows[start :: len(rows) // 8]) for start in (0, 100)] + [
        b"op,bytes,n_gpus,time_us,machine\nall_reduce,1048576,8,74.8,dgx-a100\n"
    ]


def _read_rows(path: Path) -> object:
    from trimaran_studies.published.rows import read_rows

    return read_rows(path, family="dp_throughput")


def _notes() -> Sequence[bytes]:
    return [_plain({"schema_version": 1, "trimaran": "0.1.0", "status": "running", "job": "digits", "strategy": "dp2"})]


def _read_note(path: Path) -> object:
    from trimaran.features.training.run_record import describe_status, read_status

    return read_status(path.parent), describe_status(path.parent)


@functools.cache
def _pricing() -> Any:
    from trimaran.features.price import Pricing
    from trimaran.jobs.resolve import JobSource
    from trimaran.planning.requests import PlanRequest

    return Pricing(JobSource(reference="llama3:8b"), PlanRequest(cluster="dgx-h100:2", batch=64))


def _price_strategies(path: Path) -> object:
    from trimaran.features.price import read_settings

    found = _pricing().price_each(read_settings(path)[:4])
    refused = [one.error for one in found if hasattr(one, "error")]
    if len(refused) == len(found):
        raise refused[0]
    return found


def _read_lengths(path: Path) -> object:
    from trimaran.pricing.analytical.lengths import parse_documents

    return parse_documents(str(path), packing="padded").length(4096, 4)


def _timelines() -> Sequence[bytes]:
    from tests.unit.report.runs import measured, predicted

    from trimaran.base.timeline import Timeline
    from trimaran.report.timelines import encode_timeline

    live = [[(0.0, 100), (2.0, 150)], [(0.0, 200)]]
    return [encode_timeline(measured(2)), encode_timeline(Timeline(predicted(), live))]


def _sealed_timeline(content: bytes) -> bytes:
    found = re.search(rb'"timeline":(.*)}$', content, re.DOTALL)
    digest = hashlib.sha256(found[1] if found else b"").hexdigest().encode()
    return re.sub(rb'"digest":"[^"]*"', b'"digest":"' + digest + b'"', content, count=1)


def _read_timeline(path: Path) -> object:
    from trimaran.report.page.steps import memory_section
    from trimaran.report.page.timeline import step_timelines
    from trimaran.report.timelines import read_timeline

    timeline = read_timeline(path)
    step_timelines(timeline, timeline)
    memory_section(timeline, timeline, ())
    return timeline


def _studies() -> Sequence[bytes]:
    from tests.unit.report.pages import studies

    return [_plain({"schema_version": 1} | document) for document in studies().values()]


def _run_reports() -> Sequence[bytes]:
    from tests.unit.report.test_files import REPORT

    from trimaran.program.json_files import to_plain

    return [_plain({"schema_version": 1} | to_plain(REPORT))]


def _report_document(path: Path) -> object:
    from trimaran.features.report_page.make import report

    return report(path, path.with_name("report.html"))


READERS: Mapping[str, Reader] = {
    "plan": Reader(
        modules=("trimaran/program/plan_file.py",),
        file_name="plan.json",
        form="json",
        seeds=_plans,
        read=_read_plan,
        seal=_without_digest,
    ),
    "calibration of a rehearsal": Reader(
        modules=("trimaran/rehearsal/prices.py",),
        file_name="factors.json",
        form="json",
        seeds=lambda: [
            b'{"calibration": {"others": 1.1, "host": 2.0, "kernels": {"aten.mm.default": 0.9}, "spread": 0.1,'
            b' "source": "a profile"}}'
        ],
        read=_read_factors,
    ),
    "trainer's log": Reader(
        modules=("trimaran/planning/measured_jobs.py",),
        file_name="train.log",
        form="text",
        seeds=lambda: [
            b" elapsed time per iteration (ms): 2,210.4 | global batch size:  512 |\n max reserved: 61,234\n",
            b"step: 10  loss: 7.1  memory: 41.20GiB(52.1%)  tps: 5,310\nstep: 20  memory: 41.20GiB  tps: 5,300\n",
            b"Step 3 | Time: 4.11s | Peak Mem.: 60.1/79.2 GiB\niter 10: loss 2.31, time 102.5ms\n",
        ],
        read=_read_measured,
    ),
    "program text": Reader(
        modules=("trimaran/program/text.py",),
        file_name="program.txt",
        form="text",
        seeds=lambda: [text for text in _files("golden/programs/*.txt") if len(text) < 3000],
        read=_read_program_text,
    ),
    "cost table": Reader(
        modules=("trimaran/pricing/table_files.py",),
        file_name="costs.json",
        form="json",
        seeds=_costs,
        read=_read_table,
        seal=_seal_table,
    ),
    "cost cache": Reader(
        modules=("trimaran/measure/cache.py",),
        file_name="cached.json",
        form="json",
        seeds=_costs,
        read=_read_cached,
        seal=_seal_table,
    ),
    "calibration": Reader(
        modules=("trimaran/measure/calibration/results.py",),
        file_name="calibration.json",
        form="json",
        seeds=_calibrations,
        read=_read_calibration,
        seal=_seal_calibration,
    ),
    "workload cache": Reader(
        modules=("trimaran/planning/tracing/workloads.py",),
        file_name="graph.msgpack",
        form="msgpack",
        seeds=_kept_workloads,
        read=_read_kept,
    ),
    "cluster file": Reader(
        modules=("trimaran/machine/machine_files.py",),
        file_name="rack.toml",
        form="toml",
        seeds=_machines,
        read=_read_machine,
    ),
    "imported node": Reader(
        modules=("trimaran/machine/machine_files.py", "trimaran/machine/nccl_topology.py"),
        file_name="topology.txt",
        form="text",
        seeds=_imports,
        read=_read_import,
    ),
    "nccl-tests log": Reader(
        modules=("trimaran/pricing/collectives/corrections.py",),
        file_name="run.log",
        form="text",
        seeds=_nccl_logs,
        read=_read_nccl_log,
    ),
    "profile": Reader(
        modules=("trimaran/pricing/kernels/corrections.py",),
        file_name="trace.json",
        form="json",
        seeds=_profiles,
        read=_read_profile,
    ),
    "packed profile": Reader(
        modules=("trimaran/pricing/kernels/corrections.py",),
        file_name="trace.json.gz",
        form="gzip",
        seeds=_packed_profiles,
        read=_read_profile,
    ),
    "observe record": Reader(
        modules=("trimaran/measure/observe/records.py",),
        file_name="record.json",
        form="json",
        seeds=_records,
        read=_read_records,
    ),
    "configuration": Reader(
        modules=("trimaran/jobs/huggingface.py",),
        file_name="config.json",
        form="json",
        seeds=_configurations,
        read=_read_configuration,
    ),
    "profiled graph": Reader(
        modules=("trimaran/graph/profiled.py",),
        file_name="graph.json",
        form="json",
        seeds=_profiled_graphs,
        read=_read_profiled,
    ),
    "weights": Reader(
        modules=("trimaran/runtime/checkpoint/weights.py",),
        file_name="weights.safetensors",
        form="safetensors",
        seeds=_weights,
        read=_read_weights,
        seal=_seal_weights,
    ),
    "torch.save": Reader(
        modules=("trimaran/checkpoint_files/archives.py",),
        file_name="weights.pt",
        form="archive",
        seeds=_archives,
        read=_read_archive,
    ),
    "pickle of torch.save": Reader(
        modules=("trimaran/checkpoint_files/archives.py",),
        file_name="data.pkl",
        form="pickle",
        seeds=_pickles,
        read=_read_pickle,
    ),
    "DCP metadata": Reader(
        modules=("trimaran/checkpoint_files/dcp.py",),
        file_name=".metadata",
        form="pickle",
        seeds=lambda: [_dcp()[".metadata"]],
        read=functools.partial(_read_folder, _dcp),
    ),
    "DCP chunks": Reader(
        modules=("trimaran/checkpoint_files/dcp.py", "trimaran/checkpoint_files/archives.py"),
        file_name="__0_0.distcp",
        form="binary",
        seeds=lambda: [_dcp()["__0_0.distcp"]],
        read=functools.partial(_read_folder, _dcp),
    ),
    "chunk of DCP": Reader(
        modules=("trimaran/checkpoint_files/dcp.py", "trimaran/checkpoint_files/archives.py"),
        file_name="chunk.pt",
        form="archive",
        seeds=lambda: [_chunk()],
        read=_read_chunk,
    ),
    "pytorch_model.bin": Reader(
        modules=("trimaran/checkpoint_files/imports.py",),
        file_name="pytorch_model.bin",
        form="archive",
        seeds=lambda: _archives()[:1],
        read=functools.partial(_read_folder, dict),
    ),
    "model.safetensors": Reader(
        modules=("trimaran/checkpoint_files/imports.py",),
        file_name="model.safetensors",
        form="safetensors",
        seeds=_weights,
        read=functools.partial(_read_folder, dict),
        seal=_seal_weights,
    ),
    "index of shards": Reader(
        modules=("trimaran/checkpoint_files/imports.py",),
        file_name="model.safetensors.index.json",
        form="json",
        seeds=lambda: [_shards()["model.safetensors.index.json"]],
        read=functools.partial(_read_folder, _shards),
    ),
    "configuration to copy": Reader(
        modules=("trimaran/features/checkpoints.py",),
        file_name="config.json",
        form="json",
        seeds=lambda: [_plain({"model_type": "gpt2", "n_layer": 2})],
        read=_read_copied_configuration,
    ),
    "curve, TOML": Reader(
        modules=("trimaran/convergence/files.py",),
        file_name="curve.toml",
        form="toml",
        seeds=lambda: _curves("toml"),
        read=_read_curve,
    ),
    "curve, JSON": Reader(
        modules=("trimaran/convergence/files.py",),
        file_name="curve.json",
        form="json",
        seeds=lambda: _curves("json"),
        read=_read_curve,
    ),
    "table of runs": Reader(
        modules=("trimaran/convergence/run_tables.py",),
        file_name="curve.csv",
        form="text",
        seeds=lambda: [_TABLE, _TABLE_2],
        read=_read_curve,
    ),
    "finished runs": Reader(
        modules=("trimaran/measure/convergence/runs.py",),
        file_name="runs.jsonl",
        form="lines",
        seeds=_runs,
        read=_read_runs,
    ),
    "target": Reader(
        modules=("trimaran/features/convergence/task.py",),
        file_name="target.json",
        form="json",
        seeds=lambda: [_plain({"value": 0.97, "source": "99% of what the job reaches"})],
        read=_read_target,
    ),
    "published rows": Reader(
        modules=("trimaran_studies/published/rows.py",),
        file_name="rows.csv",
        form="text",
        seeds=_rows,
        read=_read_rows,
    ),
    "strategies": Reader(
        modules=("trimaran/features/price.py",),
        file_name="strategies.txt",
        form="text",
        seeds=lambda: [
            b"tp2 dp8 mb1\n# others\ntp2 pp2 1f1b m8 recompute\n",
            b"tp4 x pp2 (2 chunks) x dp2, zero1, mb1\n",
        ],
        read=_price_strategies,
    ),
    "table of strategies": Reader(
        modules=("trimaran/features/price.py",),
        file_name="strategies.csv",
        form="text",
        seeds=lambda: [
            b"name,strategy,batch\na,tp2 dp8 mb1,64\nb,tp8 dp2,32\n",
            b"tp,pp,recompute\n2,4,layers\n4,1,\n",
        ],
        read=_price_strategies,
    ),
    "lengths": Reader(
        modules=("trimaran/pricing/analytical/lengths.py",),
        file_name="lengths.txt",
        form="text",
        seeds=lambda: [b"512 3\n2048\n4096,1.5\n", b"100\n200\n300\n"],
        read=_read_lengths,
    ),
    "run": Reader(
        modules=("trimaran/features/training/run_record.py",),
        file_name="run.json",
        form="json",
        seeds=_notes,
        read=_read_note,
    ),
    "timeline": Reader(
        modules=("trimaran/report/timelines.py",),
        file_name="timeline.json",
        form="json",
        seeds=_timelines,
        read=_read_timeline,
        seal=_sealed_timeline,
    ),
    "document of a study": Reader(
        modules=("trimaran/features/report_page/make.py", "trimaran/report/page/study.py"),
        file_name="study.json",
        form="json",
        seeds=_studies,
        read=_report_document,
    ),
    "report of a run": Reader(
        modules=("trimaran/report/page/run.py",),
        file_name="report.json",
        form="json",
        seeds=_run_reports,
        read=_report_document,
    ),
}


FOREIGN = (
    *("weights", "model.safetensors", "index of shards", "torch.save", "pytorch_model.bin", "pickle of torch.save"),
    *("DCP metadata", "DCP chunks", "chunk of DCP"),
)
"""Readers of checkpoints of others."""

INTERNAL: Mapping[str, str] = {
    "trimaran/__main__.py": "the null device, in the place of a stream that is closed",
    "trimaran/cli/forms.py": "looks whether a file is a graph; its readers are on the list",
    "trimaran/cli/output.py": "the null device, to write to",
    "trimaran/jobs/builtin.py": "images of scikit-learn's package, and their order in this one",
    "trimaran/features/rehearse/runs.py": "what the ranks of this rehearsal wrote",
    "trimaran/rehearsal/record.py": "likewise",
    "trimaran/features/rehearse/verify.py": "what the ranks of this verification wrote",
    "trimaran/rehearsal/real/worker.py": "likewise, and what the process that started it asks",
    "trimaran/trial/trial.py": "answers of processes that this one has forked",
    "trimaran/trial/watch.py": "batches of the ranks of this run, and what the process has asked that forked this one",
    "trimaran/rehearsal/build.py": "files of torch and of this package as installed, and what a trial of them kept",
    "trimaran/rehearsal/launch.py": "likewise, and what the kernel says of processes",
    "trimaran/rehearsal/groups.py": "objects of the ranks of this rehearsal",
    "trimaran/rehearsal/saved.py": "likewise, and checkpoints that the script itself loads",
    "trimaran/rehearsal/worker.py": "what the process that started it asks",
    "trimaran_studies/validation/peers.py": "checkouts of other projects, whose commits are compared first",
    "trimaran_studies/validation/peer_runs.py": "messages of the process that started it",
    "trimaran/base/files.py": "the guarded reader",
    "trimaran/base/decoding.py": "the guarded decoders",
    "trimaran/program/text.py": "decodes a text that was read: its reader is on the list",
    "trimaran/convergence/run_tables.py": "likewise",
    "trimaran_studies/published/rows.py": "likewise",
    "trimaran/features/price.py": "likewise",
    "trimaran_studies/specification/requirements.py": "results of this project's own benchmarks",
    "trimaran/measure/others.py": "what the kernel says of the cores",
    "trimaran/machine/nccl_topology.py": "likewise",
    "trimaran/measure/calibration/results.py": "decodes what it has just encoded",
    "trimaran/checkpoint_files/disk.py": "what a store of checkpoints asks of a disk",
    "trimaran/checkpoint_files/commit.py": "opens files by `Disk`; damaged in the tests of checkpoints",
    "trimaran/checkpoint_files/container.py": "likewise",
    "trimaran/checkpoint_files/archives.py": "archives of torch.save: their reader is on the list",
    "trimaran/checkpoint_files/dcp.py": "directories of DCP: their readers are on the list",
    "trimaran/checkpoint_files/imports.py": "the first bytes of weights: their readers are on the list",
    "trimaran/checkpoint_files/exports.py": "opens what it writes",
    "trimaran/features/checkpoints.py": "opens no file: a checkpoint, by its store",
    "trimaran/base/signals.py": "opens /dev/null",
    "trimaran/launch/activity.py": "memory of ranks of the same run, files of the kernel",
    "trimaran/launch/addresses.py": "what the kernel says of its network interfaces",
    "trimaran/base/system.py": "files of the kernel",
    "trimaran/graph/sharding/calls.py": "texts that tracing made in this process",
    "trimaran/pricing/collectives/prediction.py": "a file of the package",
    "trimaran/machine/detect.py": "files of the kernel",
    "trimaran/measure/input_pipeline.py": "files of the kernel",
    "trimaran/measure/stalls/page_cache.py": "files of the kernel, and one byte of each file of a data set",
    "trimaran/measure/observe/on-path/trimaran_watch/ledger.py": "a file of the kernel",
    "trimaran/launch/world.py": "files of the kernel",
    "trimaran/emulation/links.py": "a file of the kernel",
    "trimaran/runtime/data/reading.py": "a file of the kernel",
    "trimaran/runtime/communication/shared_memory.py": "memory of ranks of the same run",
    "trimaran/runtime/data/cache.py": "memory of ranks of the same run",
    "trimaran/runtime/data/worker_transport.py": "messages of workers of this process",
    "trimaran/runtime/data/workers.py": "messages between a rank and its workers",
    "trimaran/launch/supervise.py": "messages of ranks; their logs are opened to be written",
    "trimaran/launch/failures.py": "the end of a log as text, in an error",
    "trimaran/launch/worker.py": "messages of the process that started the rank",
    "trimaran/features/convergence/task.py": "makes a file that says who works",
    "trimaran/features/training/run_record.py": "files of the kernel, and its own; run.json is on the list",
    "trimaran/features/training/session.py": "opens no file: requests of signals",
    "trimaran/features/training/train.py": "opens no file: a checkpoint, by its store",
    "trimaran/runtime/checkpoint/saving.py": "opens no file: a checkpoint, by its store",
    "trimaran/measure/convergence/runs.py": "appends to its own file; what it reads is on the list",
    "trimaran_studies/reproduce/input_pipeline_rank.py": "samples that it has just packed",
    "trimaran_studies/validation/measured_loaders.py": "a file of the package",
    "trimaran/jobs/learning_rate.py": "the digest of a file of code",
    "trimaran/measure/costs.py": "the digest of a file of code",
    "trimaran/memory_budget/__init__.py": "opens no file: a window of a step",
    "trimaran/memory_budget/loop.py": "opens no file: a window of a step",
}
"""Modules that open or decode by themselves, and why no file of anybody else gets there."""
