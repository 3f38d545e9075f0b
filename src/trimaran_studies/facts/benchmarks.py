"""Networks, data and evaluations of the benchmarks that results are submitted to. Facts, not fitted."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.base.files import packaged_toml
from trimaran.base.precision import Precision
from trimaran.graph.kernels.workload import Workload
from trimaran.networks.names import canonical_network, with_options
from trimaran.planning.tracing.workloads import workload
from trimaran_studies.facts.sizes import sized_name, sized_workload

_UNKNOWN_SAMPLES = 4
"""Samples of ResNet-50 that stand for one sample of an unknown benchmark."""

_START_S = 2.0
"""Time from the start of the clock to the first step; assumed [s]."""

_EVALUATION_S = 0.5
"""Time of an evaluation, independent of the number of devices, where nothing runs on one host; assumed [s]."""

_LARGE = ("gpt", "gpt2", "gpt3", "llama", "llama1", "llama2", "llama3", "mpt", "opt")
"""Families of transformers too large for one device: a smaller network stands in for them."""

_UNKNOWN_EPOCH = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The training of a benchmark.

    Attributes:
        name: of the benchmark, by which results are grouped
        curve: its convergence curve in the catalog; "": not known
        network: a job whose step is like this one's; "" where only the size is known
        options: of that job
        optimizer: of that job; "": the job's default
        sized: an entry of the published sizes; "": none
        samples: of that job, with the work of one sample of the benchmark
        gathered_bytes: of a sample, exchanged between devices in each direction in addition to gradients [bytes]
        samples_per_epoch: of its data
        evaluations: number of them in a training
        evaluation_s: time of one, independent of the number of devices [s]
        sharded_update: whether the optimizer's work is sharded among devices
        divided: devices of a replica, where one device cannot hold it
        counted_from: number of the epoch that a log starts from
        stand_in: whether the benchmark is unknown and another network stands in
    """

    name: str
    curve: str = ""
    network: str = ""
    options: Mapping[str, str]
    optimizer: str = ""
    sized: str = ""
    samples: float = 1.0
    gathered_bytes: int = 0
    samples_per_epoch: int
    evaluations: int
    evaluation_s: float = _EVALUATION_S
    sharded_update: bool = False
    divided: int = 1
    counted_from: float = 0.0
    stand_in: bool = False

    @property
    def fixed_s(self) -> float:
        """Time of a training that does not depend on the number of devices [s]."""
        return _START_S + self.evaluations * self.evaluation_s

    def step_workload(self, samples: float, *, precision: Precision) -> Workload:
        """A step of one device.

        Args:
            samples: of the benchmark, on this device; below 1 where several devices share one
            precision: of the computation
        """
        batch = max(1, round(samples * self.samples))
        if self.sized:
            return sized_workload(self.sized, batch=batch, precision=precision, split=True)
        reference = with_options(self.network, dict(self.options))
        return workload(reference, batch=batch, precision=precision, optimizer=self.optimizer or None)


def benchmark_of(name: str, version: float) -> Benchmark:
    """The benchmark that a name means in a round.

    Args:
        name: in the results, such as "ssd"
        version: of the round; 0: not known

    Example:
        >>> benchmark_of("ssd", 1.1).name, benchmark_of("ssd", 2.0).name
        ('ssd', 'retinanet')
    """
    plain = name.lower()
    for words, rounds, found in _known():
        if any(word in plain for word in words) and rounds[0] <= version <= rounds[1]:
            return found
    built, sized = canonical_network(plain), sized_name(plain)
    if built is not None and built.split(":")[0] in _LARGE:
        built, sized = "bert:large", None
    return Benchmark(
        name=plain,
        network=built or ("" if sized else "resnet50"),
        options={},
        sized="" if built else sized or "",
        samples=1.0 if built or sized else _UNKNOWN_SAMPLES,
        samples_per_epoch=_UNKNOWN_EPOCH,
        evaluations=10,
        stand_in=True,
    )


@functools.cache
def _known() -> tuple[tuple[tuple[str, ...], tuple[float, float], Benchmark], ...]:
    return tuple(
        (
            tuple(entry["words"]),
            (entry.get("rounds", [0.0, 99.0])[0], entry.get("rounds", [0.0, 99.0])[1]),
            Benchmark(
                name=entry["name"],
                curve=entry.get("curve", ""),
                network=entry.get("network", ""),
                options=entry.get("options", {}),
                optimizer=entry.get("optimizer", ""),
                sized=entry.get("sized", ""),
                samples=entry.get("samples", 1.0),
                gathered_bytes=entry.get("gathered_bytes", 0),
                samples_per_epoch=entry["samples_per_epoch"],
                evaluations=entry["evaluations"],
                evaluation_s=entry.get("evaluation_s", _EVALUATION_S),
                sharded_update=entry.get("sharded_update", False),
                divided=entry.get("divided", 1),
                counted_from=entry.get("counted_from", 0.0),
            ),
        )
        for entry in packaged_toml("trimaran_studies.facts", "benchmarks.toml")["benchmarks"]
    )
