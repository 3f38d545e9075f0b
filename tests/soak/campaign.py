"""Trains jobs of two to four ranks, breaks them at random, and compares what comes out with an undisturbed training.

    campaign                                   trimaran train --save-every 4 --max-restarts …
    ────────                                   ──────────────
    once a plan: an undisturbed training  ──▶  losses of all steps, figures of all epochs, weights
    a training                            ──▶  parent ── ranks
        a step that was drawn is done     ◀──  each rank tells each step (`jobs.tell`)
        fault: a signal, a full disk, …   ──▶
        parent started its ranks again         first step after it: which one, and what was committed on the disk
        or it has ended: `--resume`       ──▶  parent ── ranks
    the end: all is compared

All faults are real: signals to processes, a file system that is full, a limit on the size of files (`prlimit`), errors
in the job's code. Which one, when and to whom is drawn from the seed; when exactly it hits is not the same twice.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak import jobs

from trimaran.checkpoint_files.commit import Store
from trimaran.features.training.run_record import read_status

ROOT = Path(__file__).parents[2]
JOB = f"{Path(jobs.__file__)}:make"
SAVE_EVERY = 4
HANG_S = 8.0
"""Given as `--hang-timeout`: a process that was stopped is found after it [s]."""

LIMIT_S = 240.0
"""Without a step, or an end, a training counts as lost [s]."""

DISK_BYTES = 64 * 2**20

PLANS = {
    "dp2": ("--devices", "2", "--dp", "2"),
    "dp2-zero3": ("--devices", "2", "--dp", "2", "--zero", "3"),
    "pp2": ("--devices", "2", "--pp", "2", "--dp", "1"),
    "dp3": ("--devices", "3", "--dp", "3"),
    "dp4": ("--devices", "4", "--dp", "4"),
    "dp2-pp2": ("--devices", "4", "--dp", "2", "--pp", "2"),
}

KINDS = (
    "SIGKILL of a rank",
    "SIGKILL of the parent",
    "SIGSTOP of a rank",
    "SIGSTOP of a rank, SIGKILL of the parent",
    "SIGSTOP and SIGCONT of the parent",
    "SIGTERM of a rank",
    "SIGTERM of the parent",
    "full disk",
    "limit on files",
    "exception",
    "exit of a rank",
)
_OF_PROCESSES = ("SIGKILL of a rank", "SIGSTOP of a rank", "exit of a rank")
_QUIET = ("full disk", "limit on files", "SIGSTOP and SIGCONT of the parent")
"""They end nothing by themselves."""

_MAY_BE_STARTING = (
    "SIGKILL of a rank",
    "SIGKILL of the parent",
    "SIGSTOP of a rank, SIGKILL of the parent",
    "SIGTERM of the parent",
)


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault, and what came of it.

    Attributes:
        kind: one of `KINDS`
        training: number of the training
        plan: name of the plan that ran
        at_step: steps that were known to be done
        starting: it hit while ranks were being started
        disturbed: the ranks or the run ended by it
        from_step: steps of the commit that the training went on from; None: it was not disturbed
        redone: steps that were done again
        back_s: until a step was done again, or as many as before where none was lost [s]
    """

    kind: str
    training: int
    plan: str
    at_step: int
    starting: bool
    disturbed: bool = False
    from_step: int | None = None
    redone: int = 0
    back_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Result:
    """A campaign.

    Attributes:
        faults: in order
        problems: what was not as it must be
        trainings: that were compared
        useful_s: time of their steps, as undisturbed trainings need for them [s]
        wall_s: from their start to their end, with everything [s]
        redone: steps that were done again
    """

    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    trainings: int = 0
    useful_s: float = 0.0
    wall_s: float = 0.0
    redone: int = 0

    @property
    def goodput(self) -> float:
        """Share of the time in which steps were done that counted."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0

    def table(self) -> list[dict[str, Any]]:
        """By kind of fault: how many, how many ended ranks or run, the steps done again, the time until back."""
        rows = []
        for kind in KINDS:
            found = [one for one in self.faults if one.kind == kind]
            if found:
                ended = [one for one in found if one.disturbed]
                rows.append({
                    "kind": kind,
                    "faults": len(found),
                    "while_starting": sum(one.starting for one in found),
                    "ended_the_ranks": len(ended),
                    "steps_redone_mean": statistics.fmean(one.redone for one in found),
                    "steps_redone_most": max(one.redone for one in found),
                    "back_s_median": statistics.median([one.back_s for one in ended]) if ended else None,
                    "back_s_most": max((one.back_s for one in ended), default=None),
                })  # fmt: skip
        return rows

    def add(self, other: "Result") -> None:
        """Count another campaign too."""
        self.faults += other.faults
        self.problems += other.problems
        self.trainings += other.trainings
        self.useful_s += other.useful_s
        self.wall_s += other.wall_s
        self.redone += other.redone

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Result":
        """From JSON data."""
        return cls(
            faults=[Fault(**one) for one in document["all"]],
            problems=document["problems"],
            trainings=document["trainings"],
            useful_s=document["useful_s"],
            wall_s=document["wall_s"],
            redone=document["steps_redone"],
        )

    def document(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "faults": len(self.faults),
            "trainings": self.trainings,
            "problems": self.problems,
            "goodput": self.goodput,
            "useful_s": self.useful_s,
            "wall_s": self.wall_s,
            "steps_redone": self.redone,
            "by_kind": self.table(),
            "all": [asdict(one) for one in self.faults],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An undisturbed training.

    Attributes:
        losses: of each step, in bits
        epochs: figures of each epoch
        weights: content of the file
        steps_s: from the first step to the last one [s]
    """

    losses: dict[int, str]
    epochs: list[dict[str, float]]
    weights: bytes
    steps_s: float


# ---------------------------------------------------------------------------------------------------------------------
# A training


@dataclass(slots=True)
class _Incarnation:
    """The ranks from one start to the next."""

    first: int
    last: int
    pids: dict[int, int]
    since: float


class Training:
    """One training, over as many runs as it takes.

    Args:
        folder: of its files
        plan: file of the plan
        ranks: that it starts
        name: of the plan
        cache: folder of what was measured
    """

    def __init__(self, folder: Path, plan: Path, ranks: int, name: str, cache: Path) -> None:
        self.folder, self.plan, self.ranks, self.name, self.cache = folder, plan, ranks, name, cache
        self.mark = uuid.uuid4().hex
        self.runs, self.temporary, self.breaks = folder / "runs", folder / "tmp", folder / "breaks"
        for path in (self.runs, self.temporary, self.breaks):
            path.mkdir(parents=True, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # The path of a socket may not be long.
        self._address = f"/tmp/trimaran-soak-{self.mark[:12]}"
        self._socket.bind(self._address)
        self._socket.settimeout(0.02)
        self.losses: dict[int, str] = {}
        self.problems: list[str] = []
        self.incarnations: list[_Incarnation] = []
        self.redone = 0
        self.begun = time.monotonic()
        self.process: subprocess.Popen[bytes] | None = None
        self.heard_at = time.monotonic()
        self.sources: list[Path] = []

    # -----------------------------------------------------------------------------------------------------------------
    # Processes

    def start(self) -> None:
        """Begin, or go on from the newest run that has a commit."""
        source = next((run for run in reversed(self.run_directories()) if self.commits(run)), None)
        begin = ("--plan", str(self.plan)) if source is None else ("--resume", str(source))
        restarts = ("--save-every", str(SAVE_EVERY), "--max-restarts", "1000", "--hang-timeout", str(HANG_S))
        variables = {
            "PYTHONPATH": python_path(),
            "TRIMARAN_CACHE": str(self.cache),
            "TRIMARAN_SOAK_MARK": self.mark,
            "TMPDIR": str(self.temporary),
            jobs.SOCKET: self._address,
            jobs.FAULTS: str(self.breaks),
        }
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trimaran", "train", JOB, *begin, *restarts, "--runs", str(self.runs),
                 "--oversubscribe"],
                cwd=self.folder,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )  # fmt: skip
        self.heard_at = time.monotonic()

    def run_directories(self) -> list[Path]:
        return sorted(
            (path for path in self.runs.glob("soak-*") if path.is_dir()), key=lambda path: path.stat().st_ctime
        )

    def processes(self) -> list[int]:
        """All that the training has started and that is still there."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return sorted(found)

    def rank_processes(self) -> list[int]:
        """Those of the ranks, in their order."""
        parent = -1 if self.process is None else self.process.pid
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent and fields[0] not in "ZX":
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"trimaran.launch.worker" in command:
                        found.append(pid)
        return found

    def none_left(self, pids: Sequence[int] | None = None, within_s: float = 15.0) -> list[int]:
        """Processes that do not go within some time."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            there = self.processes()
            left = there if pids is None else [pid for pid in there if pid in pids]
            if not left:
                return []
            time.sleep(0.1)
        return left

    # -----------------------------------------------------------------------------------------------------------------
    # What it says

    @property
    def step(self) -> int:
        """Steps that are done, as of the commits gone on from."""
        return self.incarnations[-1].last if self.incarnations else 0

    def commits(self, run: Path) -> list[int]:
        """Steps of what is committed in a run, newest first."""
        folder = run / "checkpoints"
        return [one.step for one in Store(folder).committed()] if folder.is_dir() else []

    def committed(self) -> int:
        """Steps of the newest commit that the training would go on from."""
        for run in reversed(self.run_directories()):
            if found := self.commits(run):
                return found[0]
        return 0

    def listen(self) -> bool:
        """Take in one message, for a moment; whether there was one."""
        try:
            text = self._socket.recv(1000).decode()
        except TimeoutError:
            return False
        now = time.monotonic()
        rank, pid, step, loss = text.split()
        self._hear(int(rank), int(pid), int(step), loss, now)
        self.heard_at = now
        return True

    def _hear(self, rank: int, pid: int, step: int, loss: str, now: float) -> None:
        if self.losses.setdefault(step, loss) != loss:
            self.problems.append(f"step {step}, rank {rank}: loss {loss}, before {self.losses[step]}")
        last = self.incarnations[-1] if self.incarnations else None
        if last is None or (pid not in last.pids.values() and last.pids.get(rank, pid) != pid):
            self._begin(rank, pid, step, now)
            return
        last.pids[rank] = pid
        last.last = max(last.last, step)

    def _begin(self, rank: int, pid: int, step: int, now: float) -> None:
        """The first step of ranks that were started."""
        before = self.incarnations[-1] if self.incarnations else None
        # Nothing has been saved since: the next is due `SAVE_EVERY` steps later.
        found = self.committed()
        if step - 1 != found:
            self.problems.append(f"went on from step {step - 1}, and step {found} is committed")
        if before is not None:
            self.redone += before.last - (step - 1)
            left = self.none_left(list(before.pids.values()), within_s=1.0)
            if left:
                self.problems.append(f"ranks of before are still there: {left}")
        self.incarnations.append(_Incarnation(first=step, last=step, pids={rank: pid}, since=now))

    def close(self) -> None:
        """End everything."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self._socket.close()
        Path(self._address).unlink(missing_ok=True)

    # -----------------------------------------------------------------------------------------------------------------
    # What it leaves

    def compare(self, reference: Reference) -> None:
        """Note what is not as after an undisturbed training."""
        if self.losses != reference.losses:
            wrong = [step for step in reference.losses if self.losses.get(step) != reference.losses[step]]
            self.problems.append(f"losses of steps {wrong} are not those of an undisturbed training")
        last = self.run_directories()[-1]
        status, _ = read_status(last)
        if status != "finished":
            self.problems.append(f"{last.name} says {status}")
        if epochs_of(last) != reference.epochs:
            self.problems.append(f"epochs {epochs_of(last)}, not {reference.epochs}")
        if (last / "model.safetensors").read_bytes() != reference.weights:
            self.problems.append("the weights are not those of an undisturbed training")
        self.look_at_files()

    def look_at_files(self) -> None:
        """Note files that are not whole, and what is left elsewhere."""
        left = self.none_left()
        if left:
            self.problems.append(f"processes are left: {left}")
        parts = [path for path in self.runs.rglob(".*") if path.is_file()]
        if parts:
            self.problems.append(f"parts of files are left: {list(map(str, parts))}")
        # A cache of torch stays.
        here = [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        if here:
            self.problems.append(f"temporary files are left: {here}")
        for run in self.run_directories():
            for file in run.glob("*.json"):
                try:
                    json.loads(file.read_text())
                except ValueError as error:
                    self.problems.append(f"{file}: {error}")
            folder = run / "checkpoints"
            if folder.is_dir():
                store = Store(folder)
                for one in store.committed():
                    if faults := store.verify(one):
                        self.problems.append(f"{one.path}: {[*map(str, faults)]}")
        final = self.run_directories()[-1] / "checkpoints"
        open_ones = [one.name for one in final.iterdir() if not (one / "COMMITTED").exists()]
        if open_ones:
            self.problems.append(f"checkpoints of the last run are not committed: {open_ones}")


def epochs_of(run: Path) -> list[dict[str, float]]:
    """The figures of a run that are the same each time."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in ("epoch", "loss", "accuracy", "samples")} for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# Faults


class Campaign:
    """Trainings with faults, one after another.

    Args:
        folder: of everything
        seed: of what is drawn
        plans: names of those that are used
        kinds: of the faults
        faults_a_training: at most
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        plans: Sequence[str] = tuple(PLANS),
        kinds: Sequence[str] = KINDS,
        faults_a_training: int = 10,
    ) -> None:
        self.folder, self.plans, self.kinds = folder, plans, kinds
        self._cache = folder / "cache"
        self._random = random.Random(seed)
        self._most = faults_a_training
        self._references: dict[str, Reference] = {}
        self._bag: list[str] = []
        self._exits = 0
        self.result = Result()

    def run(
        self, *, faults: int = 0, hours: float = 0.0, after_each: Callable[[Result], object] = lambda _: None
    ) -> Result:
        """Train until as many faults have hit, or until the time is over.

        Args:
            faults: that are planted at least
            hours: for which trainings are begun
            after_each: is told what was found so far, after each training
        """
        until = time.monotonic() + hours * 3600
        while len(self.result.faults) < faults or time.monotonic() < until:
            left = faults - len(self.result.faults) if not hours else self._most
            plan = self.plans[self.result.trainings % len(self.plans)]
            self._train(plan, self._draw(min(self._most, max(1, left))))
            after_each(self.result)
        return self.result

    def _draw(self, count: int) -> list[str]:
        """Kinds of faults: all of them come equally often."""
        found = []
        for _ in range(count):
            if not self._bag:
                self._bag = list(self.kinds)
                self._random.shuffle(self._bag)
            found.append(self._bag.pop())
        return found

    def reference(self, name: str) -> tuple[Path, Reference]:
        """The plan of a name, and its undisturbed training; made once."""
        folder = self.folder / "undisturbed" / name
        plan = folder / "plan.json"
        if name not in self._references:
            folder.mkdir(parents=True, exist_ok=True)
            if not plan.exists():
                make_plan(name, plan, self._cache)
            shutil.rmtree(folder / "runs", ignore_errors=True)
            training = Training(folder, plan, int(PLANS[name][1]), name, self._cache)
            try:
                training.start()
                started = None
                while training.process is not None and training.process.poll() is None:
                    if training.listen() and started is None:
                        started = training.heard_at
                while training.listen():
                    pass
                (run,) = training.run_directories()
                training.look_at_files()
                if training.problems:
                    raise RuntimeError(f"the undisturbed training of {name}: {training.problems}")
                self._references[name] = Reference(
                    losses=training.losses,
                    epochs=epochs_of(run),
                    weights=(run / "model.safetensors").read_bytes(),
                    steps_s=training.heard_at - (started or training.begun),
                )
            finally:
                training.close()
        return plan, self._references[name]

    def _train(self, name: str, kinds: list[str]) -> None:
        plan, reference = self.reference(name)
        folder = self.folder / f"{self.result.trainings:04d}-{name}"
        folder.mkdir(parents=True)
        with contextlib.ExitStack() as after:
            disk = after.enter_context(small_disk(folder / "runs"))
            training = Training(folder, plan, int(PLANS[name][1]), name, self._cache)
            after.callback(training.close)
            hits = _Hits(training, self._random, disk, kinds, self._next_exit, self.result.trainings)
            after.callback(hits.free)
            self._go_on(training, hits)
            if training.process is not None and training.process.returncode == 0:
                training.compare(reference)
        self.result.trainings += 1
        self.result.faults += hits.done
        self.result.problems += [f"{folder.name}: {problem}" for problem in training.problems]
        self.result.useful_s += reference.steps_s
        self.result.wall_s += time.monotonic() - training.begun
        self.result.redone += training.redone
        if not training.problems:
            shutil.rmtree(folder)

    def _next_exit(self) -> int:
        """An exit code that is not that of the fault before."""
        self._exits = self._exits % 99 + 1
        return self._exits

    def _go_on(self, training: Training, hits: "_Hits") -> None:
        """Start it, break it, and start it again, until it is done."""
        while True:
            training.start()
            hits.started()
            while training.process is not None and training.process.poll() is None:
                training.listen()
                hits.look()
                if time.monotonic() - training.heard_at > LIMIT_S:
                    training.problems.append(f"no step for {LIMIT_S:.0f} s")
                    return
            while training.listen():
                pass
            code = training.process.returncode if training.process is not None else -1
            if code == 0:
                hits.ended(disturbed=False)
                return
            hits.free()
            hits.ended(disturbed=True)
            if left := training.none_left():
                training.problems.append(f"exit code {code}, and processes are left: {left}")
            if not hits.may_end(code):
                training.problems.append(f"exit code {code}: {(training.folder / 'output.txt').read_text()[-2000:]}")
                return


def make_plan(name: str, plan: Path, cache: Path) -> None:
    """Plan the job as a name says."""
    options = (*PLANS[name], "--execution", "eager", "--oversubscribe", "--output", str(plan))
    done = subprocess.run(
        [sys.executable, "-m", "trimaran", "plan", JOB, *options],
        cwd=plan.parent,
        env=os.environ | {"PYTHONPATH": python_path(), "TRIMARAN_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"no plan {name}: {done.stderr}")


def python_path() -> str:
    return os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])


class _Hits:
    """The faults of one training."""

    def __init__(
        self, training: Training, draw: random.Random, disk: Path | None, kinds: list[str], next_exit: Any, number: int
    ) -> None:
        self._training, self._random, self._disk, self._next_exit = training, draw, disk, next_exit
        self._number = number
        self.done: list[Fault] = []
        self._left = list(kinds)
        window = (jobs.STEPS - 4) // max(1, len(kinds))
        self._steps = [1 + n * window + draw.randrange(window) for n in range(len(kinds))]
        self._starting = [draw.random() < 0.4 for _ in kinds]
        self._at: float | None = None
        self._open: list[tuple[Fault, float, int]] = []
        self._undo: list[tuple[float, Any]] = []
        self._last_rank: int | None = None
        self._seen = 0

    def started(self) -> None:
        """A parent has been started."""
        self._plan_next()

    def _plan_next(self) -> None:
        """When the next one hits: in some seconds, while ranks start, or at its step."""
        self._at = None
        if self._left and self._left[0] in _MAY_BE_STARTING and self._starting[len(self.done)]:
            self._at = time.monotonic() + self._random.uniform(0.2, 6.0)

    def look(self) -> None:
        """See what has come of faults, undo what is to be undone, and hit where it is time."""
        training, now = self._training, time.monotonic()
        if len(training.incarnations) > self._seen:
            self._seen = len(training.incarnations)
            self._back()
        for when, undo in [*self._undo]:
            if now >= when:
                self._undo.remove((when, undo))
                undo()
        if not self._left:
            return
        starting = self._at is not None and now >= self._at and not self._settled()
        if starting or (self._settled() and training.step >= self._steps[len(self.done)]):
            self._hit(starting=starting)

    def _settled(self) -> bool:
        """Steps are being done, and no fault still waits for what comes of it."""
        waits = any(one.kind not in _QUIET for one, _, _ in self._open)
        return bool(self._training.incarnations) and not waits

    def _back(self) -> None:
        """Ranks have been started again and have done a step."""
        current = self._training.incarnations[-1]
        for fault, since, last in self._open:
            if self._seen > 1:
                fault.disturbed = True
                fault.from_step = current.first - 1
                fault.redone = max(0, last - fault.from_step)
                fault.back_s = current.since - since
        self._open.clear()
        self._last_rank = None

    def ended(self, *, disturbed: bool) -> None:
        """The parent has ended."""
        for fault, _, _ in self._open:
            fault.disturbed = fault.disturbed or disturbed
        if not disturbed:
            self._open.clear()

    def may_end(self, code: int) -> bool:
        """Whether the end of the parent is one that a fault has asked for."""
        kinds = {one.kind for one in self.done[-2:]}
        expected: set[int] = set()
        if {one.kind for one in self.done} & {"full disk", "limit on files"}:
            # The training is done, or was asked to end, and not all of the run could be written: it goes on.
            expected.add(4)
        for kind in kinds:
            if "SIGTERM" in kind:
                expected |= {143, 5}
            if "SIGKILL of the parent" in kind:
                expected |= {-signal.SIGKILL}
        return code in expected

    def free(self) -> None:
        """Undo what is still to be undone."""
        for _, undo in self._undo:
            undo()
        self._undo.clear()

    def _hit(self, *, starting: bool) -> None:
        training = self._training
        kind = self._left[0]
        ranks = training.rank_processes()
        if training.process is None or (not ranks and "rank" in kind):
            return
        fault = Fault(kind=kind, training=self._number, plan=training.name, at_step=training.step, starting=starting)
        if not self._apply(kind, ranks):
            return
        self._left.pop(0)
        self.done.append(fault)
        if kind not in _QUIET:
            # What they have not ended by now they do not end.
            self._open = [one for one in self._open if one[0].kind not in _QUIET]
        self._open.append((fault, time.monotonic(), training.step))
        self._plan_next()

    def _apply(self, kind: str, ranks: list[int]) -> bool:
        """Do it; whether it could be done."""
        parent = self._training.process
        assert parent is not None
        if kind in _OF_PROCESSES and len(ranks) != self._training.ranks:
            # While they are being started: one by one.
            return False
        rank = self._random.randrange(len(ranks)) if ranks else 0
        if rank == self._last_rank:
            # The same twice, and no step between: its device would count as lost, and the training be planned again.
            rank = (rank + 1) % len(ranks)
        now = time.monotonic()
        if kind == "SIGKILL of a rank":
            self._last_rank = rank
            return _kill(ranks[rank], signal.SIGKILL)
        if kind == "SIGKILL of the parent":
            return _kill(parent.pid, signal.SIGKILL)
        if kind == "SIGSTOP of a rank":
            self._last_rank = rank
            return _kill(ranks[rank], signal.SIGSTOP)
        if kind == "SIGSTOP of a rank, SIGKILL of the parent":
            return _kill(ranks[rank], signal.SIGSTOP) and _kill(parent.pid, signal.SIGKILL)
        if kind == "SIGSTOP and SIGCONT of the parent":
            self._undo.append((now + self._random.uniform(0.5, 3.0), lambda: _kill(parent.pid, signal.SIGCONT)))
            return _kill(parent.pid, signal.SIGSTOP)
        if kind == "SIGTERM of a rank":
            return _kill(ranks[rank], signal.SIGTERM)
        if kind == "SIGTERM of the parent":
            return _kill(parent.pid, signal.SIGTERM)
        if kind == "full disk":
            if self._disk is None:
                return False
            filler = fill(self._disk)
            self._undo.append((now + self._random.uniform(0.5, 1.5), lambda: filler.unlink(missing_ok=True)))
            return True
        if kind == "limit on files":
            before = {pid: _limit(pid, 64) for pid in ranks}
            self._undo.append((now + self._random.uniform(0.5, 1.5), lambda: _put_back(before)))
            return True
        place = self._random.choice(jobs.PLACES)
        text = f"exit {self._next_exit()}" if kind == "exit of a rank" else f"raise fault {len(self.done)}"
        part = self._training.breaks / ".part"
        part.write_text(text)
        part.rename(self._training.breaks / place)
        return True


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _limit(pid: int, nbytes: int) -> tuple[int, int] | None:
    """Limit the size of files that a process writes; the limits that it had."""
    with contextlib.suppress(OSError):
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (nbytes, before[1]))
        return before
    return None


def _put_back(limits: dict[int, tuple[int, int] | None]) -> None:
    for pid, before in limits.items():
        if before is not None:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A small file system in memory at a folder; None where nothing can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return filler
