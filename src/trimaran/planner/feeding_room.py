"""What workers and kept samples take of the host, and what of it the ranks leave."""

from trimaran.costs.pricing import microbatch_size
from trimaran.costs.sample_costs import SampleCosts
from trimaran.planner.candidates import Candidate
from trimaran.planner.feeding_reasons import not_kept
from trimaran.planner.problem import Problem
from trimaran.planner.room import Room
from trimaran.program.feeding import Feeding
from trimaran.program.types import Kind
from trimaran.units import format_bytes

WORKERS_PER_CORE = 16
WORKER_BYTES = 256 * 2**20
"""Memory of a worker: an interpreter with torch, what it has of the parent's not counted twice [bytes]."""

MEMORY_SHARE = 0.5
"""Of the memory that the ranks leave, what workers and kept samples may take together; the rest is the system's."""


def most_workers(candidate: Candidate, samples: SampleCosts, problem: Problem) -> int:
    """Workers of a rank that the host bears: its memory and its cores.

    Args:
        candidate: says who reads, how much at a time, and what memory the ranks take
        samples: what they take
        problem: has the memory of the host, and its cores
    """
    if problem.room is None:
        return 0
    readers, batches = _readers(candidate), _batch_bytes(candidate, samples, problem)
    by_memory = int(_left_bytes(candidate, problem.room, problem) // ((WORKER_BYTES + batches) * readers))
    by_cores = max(1, WORKERS_PER_CORE * problem.table.fingerprint.cores // readers)
    return min(by_memory, by_cores)


def no_room(candidate: Candidate, samples: SampleCosts, problem: Problem) -> str:
    """Why the host bears no worker; empty where it bears one.

    Args:
        candidate: as of `most_workers`
        samples: what they take
        problem: has the memory of the host
    """
    room = problem.room
    if room is None or most_workers(candidate, samples, problem):
        return ""
    readers, batches = _readers(candidate), _batch_bytes(candidate, samples, problem)
    left = format_bytes(int(_left_bytes(candidate, room, problem)))
    return (
        f"no worker has room: one for each rank that reads takes {format_bytes((WORKER_BYTES + batches) * readers)}, "
        f"and the ranks leave {left}"
    )


def obstacle(candidate: Candidate, samples: SampleCosts, problem: Problem, *, workers: int = 0) -> str:
    """Why samples cannot be kept, or need not be; empty where they may.

    Args:
        candidate: says what memory the ranks take
        samples: what they take, and whether they repeat
        problem: has the pins, the memory of the host and the epochs
        workers: of each rank that reads, for which there must be memory too
    """
    if "cache" in problem.pins.forbid:
        return "--forbid cache"
    if problem.room is None:
        return "nobody knows the memory of the host"
    taken = workers * _readers(candidate) * (WORKER_BYTES + _batch_bytes(candidate, samples, problem))
    left_bytes = max(0.0, _left_bytes(candidate, problem.room, problem) - taken)
    return not_kept(samples, problem.room, left_bytes=left_bytes)


def _left_bytes(candidate: Candidate, room: Room, problem: Problem) -> float:
    """Memory of the host that ranks leave for workers and kept samples [bytes]."""
    taken = sum(candidate.peak_bytes) if problem.table.fingerprint.kind == "cpu" else 0
    return MEMORY_SHARE * max(0, room.memory_bytes - taken)


def _readers(candidate: Candidate) -> int:
    """Ranks that read, also where one replica stands for all."""
    program = candidate.program
    readers = len({item.rank for item in program if item.kind == Kind.LOAD})
    return max(1, readers * candidate.strategy.devices // len(program.ranks))


def _batch_bytes(candidate: Candidate, samples: SampleCosts, problem: Problem) -> int:
    """What a worker has of microbatches: ready, in its hands, on its way, and two that training has [bytes]."""
    size = microbatch_size(candidate.program, candidate.strategy, batch=problem.batch)
    return (Feeding().ahead + 3) * size * samples.sample_bytes
