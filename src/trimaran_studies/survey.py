"""Published remedies for what limits parallel training, and what our models say that each is worth on two jobs.

Each remedy is compared with plain data parallelism on both jobs: the strategies that have it are simulated as any plan
is, and the best of them counts. Nothing is taken from the works but the idea.

A gain is the share of the time that is saved. Remedies that need more samples to the target (PowerSGD, stale gradients)
are charged for them, as plans charge them. "Worth it" and "not worth it" are said where that holds for low, median and
high costs alike, by more than what the simulator leaves out; between them nothing is decided.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from trimaran.base.errors import InfeasibleError, TrimaranError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes, format_seconds
from trimaran.machine.find import find_machine
from trimaran.planner.candidates import Candidate
from trimaran.planner.explanation.contrast import is_believed_slower
from trimaran.planner.pins import NO_PINS, Pins, kinds_of
from trimaran.planner.problem import Problem, arrange, assess_split, lack_of_memory, split_for
from trimaran.planner.space import enumerate_strategies
from trimaran.planning.estimated_problem import machine_problem
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.exchange.step import Sync
from trimaran.program.strategy import Strategy
from trimaran.report.tables import frame_table

Challenge = Literal["input pipeline", "gradient exchange", "idle devices", "memory"]
"""What limits a job."""

Answer = Literal["worth it", "not worth it", "undecided", "does not fit", "cannot be asked"]
"""What our models say of a remedy."""

COMMAND = "python -m trimaran_studies reproduce survey --write docs/survey.md"
"""Writes the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A remedy on a job.

    Attributes:
        answer: in two words
        gain: share of the time that is saved; None: there is no figure
        said: the figures, or why there are none
    """

    answer: Answer
    gain: float | None
    said: str


def cannot_be_asked(reason: str) -> Outcome:
    """An outcome without a figure."""
    return Outcome(answer="cannot be asked", gain=None, said=reason)


@dataclass(frozen=True, kw_only=True)
class SurveyedJob:
    """A job on a cluster, and plain data parallelism on it.

    Attributes:
        reference: of the network
        cluster: machine of the catalog
        devices: that take part
        local_batch: samples of each in plain data parallelism
        is_decoded: whether its samples are photographs that the host decodes
        title: for people
    """

    reference: str
    cluster: str
    devices: int
    local_batch: int
    is_decoded: bool
    title: str

    @property
    def batch(self) -> int:
        """Samples of one update."""
        return self.devices * self.local_batch

    @cached_property
    def problem(self) -> Problem:
        """Its graph, costs and devices; compression and stale gradients are allowed."""
        pins = Pins(compress=True, stale=True)
        request = PlanRequest(cluster=self.cluster, devices=self.devices, batch=self.batch, pins=pins)
        return machine_problem(self.reference, request)

    @cached_property
    def strategies(self) -> Sequence[Strategy]:
        """All that a plan may choose among."""
        problem = self.problem
        found, _ = enumerate_strategies(
            problem.graph,
            devices=self.devices,
            batch=self.batch,
            pins=problem.pins,
            hosts=problem.cluster.hosts,
        )
        return found

    @cached_property
    def baseline(self) -> Candidate:
        """Plain data parallelism, as DDP has it."""
        return self.simulate(Strategy(dp=self.devices))

    def simulate(self, strategy: Strategy) -> Candidate:
        """A step of a strategy, as plans simulate it."""
        return assess_split(arrange(split_for(strategy, self.problem), self.problem), self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A published remedy.

    Attributes:
        name: of the system or method
        citation: authors, title, place and year
        challenge: that it acts on
        idea: in a few words
        question: what our models are asked; None: nothing of it can be asked
        reason: why not
    """

    name: str
    citation: str
    challenge: Challenge
    idea: str
    question: Callable[[SurveyedJob], Outcome] | None = None
    reason: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# Questions


def _strategies(job: SurveyedJob, *, wanted: Callable[[Strategy], bool]) -> Outcome:
    """The best strategy of a kind, on all devices, against plain data parallelism."""
    found: list[Candidate] = []
    objections: list[str] = []
    for strategy in job.strategies:
        if strategy.devices == job.devices and wanted(strategy):
            try:
                found.append(job.simulate(strategy))
            except TrimaranError as error:
                objections.append(error.message)
    if not found:
        return cannot_be_asked(objections[0] if objections else "no plan for this network has it")
    fitting = [one for one in found if not lack_of_memory(one.peak_bytes, job.problem)]
    if not fitting:
        least = min(found, key=lambda one: max(one.peak_bytes))
        return Outcome(
            answer="does not fit", gain=None, said=f"{least.name} needs {format_bytes(max(least.peak_bytes))}"
        )
    return _compared(min(fitting, key=lambda one: one.objective_s), job)


def _compared(best: Candidate, job: SurveyedJob) -> Outcome:
    base = job.baseline
    answer: Answer = "undecided"
    if is_believed_slower(base, best):
        answer = "worth it"
    elif is_believed_slower(best, base):
        answer = "not worth it"
    said = f"{best.name} {format_seconds(best.step_time_s)}"
    if best.samples_factor != 1.0:
        said += f", {best.samples_factor:g} × the samples"
    peaks = max(best.peak_bytes), max(base.peak_bytes)
    if abs(peaks[0] / peaks[1] - 1) > 0.05:
        said += f", {format_bytes(peaks[0])}"
    return Outcome(answer=answer, gain=1 - best.objective_s / base.objective_s, said=said)


def _one_bucket(job: SurveyedJob) -> Outcome:
    """Overlapped buckets against one bucket for all gradients, which leaves after the backward."""
    whole = job.simulate(Strategy(dp=job.devices, bucket_bytes=1 << 40))
    base = job.baseline
    answer: Answer = "worth it" if is_believed_slower(whole, base) else "undecided"
    if is_believed_slower(base, whole):
        answer = "not worth it"
    gain = 1 - base.step_time_s / whole.step_time_s
    return Outcome(
        answer=answer, gain=gain, said=f"of one bucket after the backward, {format_seconds(whole.step_time_s)}"
    )


def _exchange(job: SurveyedJob, *, sync: Sync, against: Sync, title: str) -> Outcome:
    """A method of exchange against another one, by `trimaran scale`."""
    from trimaran.features.scaling import predict_scaling

    try:
        study = predict_scaling(
            job.reference,
            cluster=job.cluster,
            devices=(job.devices,),
            local_batch=job.local_batch,
            sync=(against, sync),
            software="pytorch",
        )
        steps = {row.sync: row.step_time_s for row in study.rows}
        base, step = steps[against], steps[sync]
    except (TrimaranError, KeyError) as error:
        return cannot_be_asked(str(error))
    gain = 1 - step / base
    # Errors of the computation are the same on both sides, so the intervals of the two steps are not compared.
    answer: Answer = "worth it" if gain > _LEFT_OUT else "not worth it" if gain <= 0.0 else "undecided"
    said = f"{format_seconds(step)}, {title} {format_seconds(base)}"
    if any(one.sync is None for one in study.faster):
        answer = "undecided"
        said += "; not sure, as it depends on constants that nobody has measured"
    return Outcome(answer=answer, gain=gain, said=said)


def _through_one_gpu(job: SurveyedJob, *, remedy: str) -> Outcome:
    """A remedy of the study on one node, against replicate-and-scatter."""
    from trimaran.planning.data_parallel_job import DataParallelJob
    from trimaran_studies.reproduce.input_pipeline import SOFTWARE, Case, RemedySteps
    from trimaran_studies.reproduce.torch_data_parallel import ABLATION, NONE

    machine = find_machine(job.cluster.partition(":")[0])
    count = machine.node.devices
    steps = RemedySteps(
        DataParallelJob(reference=job.reference, machine=machine, software=SOFTWARE), count, job.local_batch
    )
    if not steps.memory().fits:
        return Outcome(answer="does not fit", gain=None, said=f"the first of {count} GPUs holds all outputs")
    remedies = next(one for one in ABLATION if one.name == remedy)
    base = Case("replicate-and-scatter", NONE)
    case = Case("replicate-and-scatter", remedies)
    saved, (low, high) = steps.saved(case, base)
    answer: Answer = "worth it" if low > _LEFT_OUT else "not worth it" if high <= _LEFT_OUT else "undecided"
    said = f"of replicate-and-scatter on one node, {format_seconds(steps.step(base).seconds)}"
    return Outcome(answer=answer, gain=saved, said=said)


def _decoded_on_the_device(job: SurveyedJob) -> Outcome:
    """DALI's loader against torchvision's, on the cores of a node."""
    from trimaran_studies.facts.loaders import most_samples_per_s, photograph_feed

    if not job.is_decoded:
        return cannot_be_asked("its samples are tokens, which nobody decodes")
    machine = find_machine(job.cluster)
    count = machine.node.devices
    samples = count * job.local_batch
    rates = {
        name: most_samples_per_s(photograph_feed(machine.node, loader=name), devices=count)
        for name in ("torchvision", "dali")
    }
    slow_s, fast_s = (max(job.baseline.step_time_s, samples / rates[name]) for name in ("torchvision", "dali"))
    gain = 1 - fast_s / slow_s
    said = f"{rates['torchvision']:,.0f} → {rates['dali']:,.0f} photographs/s a node; a step asks for "
    said += f"{samples / job.baseline.step_time_s:,.0f}"
    return Outcome(answer="worth it" if gain > _LEFT_OUT else "not worth it", gain=gain, said=said)


def _in_less_memory(job: SurveyedJob, *, policy: str, codec: str | None = None) -> Outcome:
    """A memory plan for a step of one device in a part of what it takes without; worth it where that does not fit."""
    from trimaran.features.memory_fit.estimate import estimate_memory

    device = find_machine(job.cluster).node.device.name
    try:
        found = estimate_memory(
            job.reference, device=device, batch=job.local_batch, budget=_SHARE, codec=codec, largest_batch=False
        ).estimate
    except InfeasibleError as error:
        return Outcome(answer="does not fit", gain=None, said=str(error))
    line = found.policies[policy]
    if not line.fits:
        said = f"{format_bytes(found.budget_bytes)}, {_SHARE} of what a device needs without"
        return Outcome(answer="does not fit", gain=None, said=said)
    fits_without = found.kept_bytes <= min(job.problem.cluster.memory_bytes)
    said = f"in {_SHARE} of the memory, {format_bytes(found.budget_bytes)}; all of it {_fits_or_not(fits_without)}"
    return Outcome(answer="not worth it" if fits_without else "worth it", gain=-line.slowdown, said=said)


def _fits_or_not(fits: bool) -> str:
    return "fits too" if fits else "does not fit"


def _best_plan(job: SurveyedJob) -> Outcome:
    """The planner's own choice among all kinds, without loss."""
    from trimaran.planner.search import search

    return _compared(search(replace(job.problem, pins=NO_PINS)).chosen, job)


_SHARE = "70 %"
"""Of the memory that a step of one device takes, in which memory plans are asked for."""

_LEFT_OUT = 0.03
"""Share of a step that the simulator leaves out."""


# ---------------------------------------------------------------------------------------------------------------------
# Works and jobs


def _is(*kinds: str) -> Callable[[Strategy], bool]:
    """Strategies of these kinds, and of no other but replicas."""
    wanted = frozenset(kinds)

    def holds(strategy: Strategy) -> bool:
        found = kinds_of(strategy)
        return wanted <= found <= wanted | {"dp"}

    return holds


def _compressed(method: str) -> Callable[[Strategy], bool]:
    def holds(strategy: Strategy) -> bool:
        compression = strategy.compression
        return compression is not None and compression.method == method and kinds_of(strategy) == {"dp", "compress"}

    return holds


JOBS: tuple[SurveyedJob, ...] = (
    SurveyedJob(
        reference="resnet50",
        cluster="nc24rs-v3:4@ethernet-10g",
        devices=16,
        local_batch=32,
        is_decoded=True,
        title="ResNet-50, 4 nodes of 4 V100 on PCIe, 10 Gb/s between nodes",
    ),
    SurveyedJob(
        reference="gpt2:355m",
        cluster="dgx-a100:2",
        devices=16,
        local_batch=4,
        is_decoded=False,
        title="GPT-2 of 355 million parameters, 2 nodes of 8 A100 on NVLink, InfiniBand between nodes",
    ),
)
"""The two jobs."""

WORKS: tuple[Work, ...] = (
    Work(
        name="host-side splitting",
        citation="Xu et al.: ScaleDNN: Data Movement Aware DNN Training on Multi-GPU. ICCAD 2021",
        challenge="input pipeline",
        idea="the host gives each GPU its share of the batch; nothing is scattered from the first one",
        question=partial(_through_one_gpu, remedy="split"),
    ),
    Work(
        name="pre-loading",
        citation="Xu et al.: ScaleDNN. ICCAD 2021",
        challenge="input pipeline",
        idea="the next batch is read and copied during the step",
        question=partial(_through_one_gpu, remedy="pre-load"),
    ),
    Work(
        name="DALI",
        citation="NVIDIA Data Loading Library, github.com/NVIDIA/DALI, since 2018",
        challenge="input pipeline",
        idea="photographs are decoded and augmented by the GPU",
        question=_decoded_on_the_device,
    ),
    Work(
        name="CoorDL",
        citation="Mohan, Phanishayee, Raniwala, Chidambaram: Analyzing and Mitigating Data Stalls in DNN "
        "Training. VLDB 2021",
        challenge="input pipeline",
        idea="samples are cached without evictions, prepared once for several jobs",
        reason="on a target cluster data are taken to be in memory; here plans keep samples (docs/feeding.md) and "
        "profile --stalls says what reading costs",
    ),
    Work(
        name="tf.data",
        citation="Murray, Šimša, Klimovic, Indyk: tf.data: A Machine Learning Data Processing Framework. VLDB 2021",
        challenge="input pipeline",
        idea="parallelism and depth of prefetching are tuned while it runs",
        reason="the rate of a loader is given (docs/feeding.md); that it is tuned while it runs is no part of that",
    ),
    Work(
        name="parameter server",
        citation="Li, Andersen, Park et al.: Scaling Distributed Machine Learning with the Parameter Server. OSDI 2014",
        challenge="gradient exchange",
        idea="servers sum gradients and hold the weights",
        question=partial(_exchange, sync="server", against="nccl", title="all-reduce"),
    ),
    Work(
        name="ring all-reduce",
        citation="Sergeev, Del Balso: Horovod: Fast and Easy Distributed Deep Learning in TensorFlow. "
        "arXiv:1802.05799, 2018",
        challenge="gradient exchange",
        idea="workers sum among themselves, each sends about twice the gradients",
        question=partial(_exchange, sync="nccl", against="server", title="servers"),
    ),
    Work(
        name="BytePS",
        citation="Jiang, Zhu, Lan, Yi, Cui, Guo: A Unified Architecture for Accelerating Distributed DNN Training in "
        "Heterogeneous GPU/CPU Clusters. OSDI 2020",
        challenge="gradient exchange",
        idea="spare machines sum gradients too; here one for each machine of workers",
        question=partial(_exchange, sync="byteps", against="nccl", title="all-reduce"),
    ),
    Work(
        name="overlapped buckets",
        citation="Li, Zhao, Varma et al.: PyTorch Distributed: Experiences on Accelerating Data Parallel "
        "Training. VLDB 2020",
        challenge="gradient exchange",
        idea="gradients leave in buckets during the backward",
        question=_one_bucket,
    ),
    Work(
        name="hierarchical all-reduce",
        citation="Cho, Finkler, Serrano, Kung, Hunter: BlueConnect: Decomposing All-Reduce for Deep Learning on "
        "Heterogeneous Network Hierarchy. MLSys 2019",
        challenge="gradient exchange",
        idea="sums within nodes, then across them",
        question=partial(_strategies, wanted=_is("hierarchical")),
    ),
    Work(
        name="16-bit gradients with error feedback",
        citation="Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel "
        "Distributed Training of Speech DNNs. Interspeech 2014; 16 bits: ScaleDNN, ICCAD 2021",
        challenge="gradient exchange",
        idea="fewer bits a number; what is lost is added to the next gradient",
        question=partial(_strategies, wanted=_compressed("bf16")),
    ),
    Work(
        name="PowerSGD",
        citation="Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed "
        "Optimization. "
        "NeurIPS 2019, arXiv:1905.13727",
        challenge="gradient exchange",
        idea="two thin matrices in place of a gradient",
        question=partial(_strategies, wanted=_compressed("powersgd")),
    ),
    Work(
        name="ByteScheduler",
        citation="Peng, Zhu, Chen et al.: A Generic Communication Scheduler for Distributed DNN Training "
        "Acceleration. SOSP 2019",
        challenge="gradient exchange",
        idea="tensors are split and sent by priority, so that the next forward starts early",
        reason="buckets leave in the order in which they are complete (docs/wire.md); no plan has another order",
    ),
    Work(
        name="GPipe",
        citation="Huang, Cheng, Bapna et al.: GPipe: Efficient Training of Giant Neural Networks using Pipeline "
        "Parallelism. "
        "NeurIPS 2019, arXiv:1811.06965",
        challenge="idle devices",
        idea="a pipeline of microbatches, flushed after each step",
        question=partial(_strategies, wanted=_is("pp", "gpipe")),
    ),
    Work(
        name="PipeDream",
        citation="Narayanan, Harlap, Phanishayee et al.: PipeDream: Generalized Pipeline Parallelism for DNN "
        "Training. SOSP 2019",
        challenge="idle devices",
        idea="a pipeline that is never flushed, with earlier weights (stale)",
        question=partial(_strategies, wanted=_is("pp", "stale")),
    ),
    Work(
        name="1F1B and interleaved stages",
        citation="Narayanan, Shoeybi, Casper et al.: Efficient Large-Scale Language Model Training on GPU "
        "Clusters Using "
        "Megatron-LM. SC 2021, arXiv:2104.04473",
        challenge="idle devices",
        idea="several parts of the network on each stage; a smaller bubble",
        question=partial(_strategies, wanted=_is("pp", "interleaved")),
    ),
    Work(
        name="zero-bubble pipelines",
        citation="Qi, Wan, Huang, Lin: Zero Bubble (Almost) Pipeline Parallelism. ICLR 2024, arXiv:2401.10241",
        challenge="idle devices",
        idea="gradients of weights fill the bubble",
        question=partial(_strategies, wanted=_is("pp", "zero-bubble")),
    ),
    Work(
        name="tensor parallelism",
        citation="Shoeybi, Patwary, Puri et al.: Megatron-LM: Training Multi-Billion Parameter Language Models "
        "Using Model "
        "Parallelism. arXiv:1909.08053, 2019",
        challenge="idle devices",
        idea="each layer on several devices",
        question=partial(_strategies, wanted=_is("tp")),
    ),
    Work(
        name="Alpa",
        citation="Zheng, Li, Zhang et al.: Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep "
        "Learning. OSDI 2022, arXiv:2201.12023",
        challenge="idle devices",
        idea="all kinds of parallelism are searched together; here by our planner",
        question=_best_plan,
    ),
    Work(
        name="ZeRO",
        citation="Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory Optimizations Toward Training Trillion Parameter "
        "Models. "
        "SC 2020, arXiv:1910.02054",
        challenge="memory",
        idea="replicas shard optimizer state, gradients, parameters",
        question=partial(_strategies, wanted=_is("zero")),
    ),
    Work(
        name="vDNN",
        citation="Rhu, Gimelshein, Clemons, Zulfiqar, Keckler: vDNN: Virtualized Deep Neural Networks for Scalable, "
        "Memory-Efficient Neural Network Design. MICRO 2016, arXiv:1602.08124",
        challenge="memory",
        idea="feature maps wait in the memory of the host",
        question=partial(_in_less_memory, policy="dyn"),
    ),
    Work(
        name="offload or recompute, tensor by tensor",
        citation="Peng, Shi, Dai et al.: Capuchin: Tensor-based GPU Memory Management for Deep Learning. ASPLOS 2020; "
        "recomputation: Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost. "
        "arXiv:1604.06174, 2016",
        challenge="memory",
        idea="each tensor stays, waits on the host, or is recomputed; here by our memory plan",
        question=partial(_in_less_memory, policy="ours"),
    ),
    Work(
        name="cDMA",
        citation="Rhu, O'Connor, Chatterjee, Pool, Kwon, Keckler: Compressing DMA Engine: Leveraging Activation "
        "Sparsity for "
        "Training Deep Neural Networks. HPCA 2018",
        challenge="memory",
        idea="zeros behind ReLUs are not copied to the host; here by the codec of our memory plan",
        question=partial(_in_less_memory, policy="ours", codec="sparse"),
    ),
    Work(
        name="ZeRO-Offload",
        citation="Ren, Rajbhandari, Aminabadi et al.: ZeRO-Offload: Democratizing Billion-Scale Model Training. "
        "ATC 2021, "
        "arXiv:2101.06840",
        challenge="memory",
        idea="optimizer state and update on the host",
        reason="plans offload what the backward needs; updates run on the device",
    ),
)
"""The works, by challenge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedWork:
    """A work with its outcome on each job.

    Attributes:
        work: the remedy
        outcomes: in the order of the jobs
    """

    work: Work
    outcomes: tuple[Outcome, ...]


def survey(
    *, works: Iterable[Work] = WORKS, jobs: Sequence[SurveyedJob] = JOBS, progress: Progress = ignore_progress
) -> tuple[SurveyedWork, ...]:
    """Ask what each remedy is worth on each job.

    Args:
        works: some of them
        jobs: on which
        progress: called with the current work
    """
    asked = tuple(works)
    found = []
    for place, work in enumerate(asked):
        progress(work.name, place, len(asked))
        outcomes = tuple(cannot_be_asked(work.reason) if work.question is None else work.question(job) for job in jobs)
        found.append(SurveyedWork(work=work, outcomes=outcomes))
    return tuple(found)


def survey_document(found: Sequence[SurveyedWork], jobs: Sequence[SurveyedJob] = JOBS) -> dict[str, Any]:
    """The survey as plain data."""
    return {
        "jobs": [
            {
                "job": job.reference,
                "cluster": job.cluster,
                "devices": job.devices,
                "global_batch_size": job.batch,
                "baseline": job.baseline.name,
                "baseline_step_s": job.baseline.step_time_s,
            }
            for job in jobs
        ],
        "works": [
            {
                "name": each.work.name,
                "citation": each.work.citation,
                "challenge": each.work.challenge,
                "idea": each.work.idea,
                "outcomes": [
                    {"job": job.reference, "answer": one.answer, "gain": one.gain, "said": one.said}
                    for job, one in zip(jobs, each.outcomes, strict=True)
                ],
            }
            for each in found
        ],
    }


_CHALLENGES: dict[Challenge, str] = {
    "input pipeline": "Data do not arrive in time",
    "gradient exchange": "Gradients do not leave in time",
    "idle devices": "Devices wait for each other, or a network is larger than one",
    "memory": "A step does not fit",
}

_HEAD = """# Challenges of parallel training: a survey of remedies

Written by `{command}`. Xu, Zhang and Tang (Parallelizing DNN Training on
GPUs: Challenges and Opportunities, WWW '21 Companion; with others ScaleDNN, ICCAD 2021) name two causes of bad scaling:
data parallelism moves so much that devices are not fed in time, and model parallelism leaves devices idle. Here are
their remedies and those of others, each with what Trimaran's models say it is worth on two jobs:

{jobs}

A gain is the share of the time that is saved against plain data parallelism there, unless the cell names another
baseline; of methods that need more samples, to the target. *Worth it* and *not worth it* hold for low, median and high
costs; *undecided* is between. All figures are predictions for target clusters, none is measured; `trimaran explain`,
`scale`, `observe` and `profile --stalls` rank the same remedies for your job.
"""


def job_line(job: SurveyedJob) -> str:
    """A job and its baseline."""
    base = job.baseline
    return (
        f"- **{job.reference}**: {job.title}; global batch {job.batch}. {base.name} takes "
        f"{format_seconds(base.step_time_s)} "
        f"a step and {format_bytes(max(base.peak_bytes))}; limited by {base.limiter}."
    )


def work_line(each: SurveyedWork) -> str:
    """A work as a line of its table."""
    cells = [f"{each.work.name}: {each.work.idea}", *map(_cell, each.outcomes)]
    return f"| {' | '.join(cells)} |"


def _cell(outcome: Outcome) -> str:
    gain = "" if outcome.gain is None else f"{100 * outcome.gain:+.1f} %, "
    answer = f"**{outcome.answer}**" if outcome.answer == "worth it" else outcome.answer
    return f"{gain}{answer}: {outcome.said}"


def survey_table(found: Sequence[SurveyedWork], jobs: Sequence[SurveyedJob] = JOBS) -> Table:
    """The survey for people, a line for each work."""
    table = frame_table()
    for title in ("remedy", *(f"{job.reference}, {job.cluster}" for job in jobs)):
        table.add_column(title)
    for each in found:
        table.add_row(each.work.name, *(escape(_cell(one).replace("**", "")) for one in each.outcomes))
    return table


def survey_page(found: Sequence[SurveyedWork], jobs: Sequence[SurveyedJob] = JOBS) -> str:
    """The page, as Markdown.

    Args:
        found: of `survey`
        jobs: on which it asked
    """
    parts = [_HEAD.format(command=COMMAND, jobs="\n".join(map(job_line, jobs)))]
    for challenge, title in _CHALLENGES.items():
        rows = [each for each in found if each.work.challenge == challenge]
        head = f"| remedy | {' | '.join(job.reference for job in jobs)} |\n|{'---|' * (1 + len(jobs))}"
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(map(work_line, rows)) + "\n")
    works = "\n".join(f"- {each.work.name}: {each.work.citation}." for each in found)
    return "\n".join([*parts, f"## Works\n\n{works}\n"])
