"""Find the strategy that is best and fits.

    minimise    simulated time of a step of strategy s, or of an epoch with its evaluation
    subject to  s.dp · s.pp · s.tp ≤ devices;  s.dp · s.microbatches divides the batch;  stages cut at legal places, or
                branches placed;  live bytes of every rank ≤ memory of its device, at every moment of the simulated
                step;  s goes against no pin

The space is enumerated (`space.py`), and each strategy gets a lower bound of its time and memory from totals alone
(`quick.py`). In the order of these bounds the stages are cut (`cutting.py`) and the program of two microbatches is
priced, which gives a better bound (`bounds.py`); what is then still the lowest is simulated, placements solved when
their turn comes:

    1. until no bound is below the best simulated time, or the best is as close to the lowest bound as `Problem.gap`
       says: now the fastest is known;
    2. of the rest, those that the uncertainty may leave as fast as it, those that may use less memory or fewer devices
       than all that are faster, the best of each family, and what people do without a plan;
    3. more sizes of buckets of the best replicas, where these wait for their gradients (`bucketing.py`).

What is left out is slower than the fastest by more than the uncertainty and not on the front of time, memory and
devices, so the choice and the front are those of a search that simulates everything, unless its time ran out. On more
than `EVERY_NUMBER` devices stages are taken for equal in the first bound, and the front is that of what was simulated
for other reasons. A strategy that is believed faster only within the uncertainty of the costs loses to a simpler one
(`choice.py`). Bounds are those of the sizes of buckets that the space has.

A whole network that memory alone stands against is tried once more in the memory that there is, with a plan of what is
kept, offloaded and recomputed (`virtual.py`), where its step was traced.

Left out so far: memory plans of pipeline stages; placements of several microbatches at once.
"""

import time
from collections.abc import Iterable, Sequence

from trimaran.planner.baselines import baseline_of, baselines_of, unpinned_references
from trimaran.planner.bucketing import refine_buckets
from trimaran.planner.choice import choose, is_reference, pareto_front, simplicity
from trimaran.planner.feeding import fed
from trimaran.planner.found import Search
from trimaran.planner.hunt import Hunt, fill_up, find_fastest, order_of
from trimaran.planner.problem import Problem, way_of
from trimaran.planner.rejecting import nothing_fits, too_slow
from trimaran.planner.space import Rejection, enumerate_strategies
from trimaran.planner.trials import Prospect, Trials
from trimaran.planner.virtualized import virtualized
from trimaran.program import Strategy


def search(problem: Problem, trials: Trials | None = None) -> Search:
    """Find the strategy with the shortest step, or epoch, that fits.

    Args:
        problem: the job, its costs, its devices and what is decided already
        trials: of the same problem with other pins, so that nothing is simulated twice; None: there are none

    Returns:
        The candidates, the chosen one among them. The same problem gives the same result, unless its time runs out.

    Raises:
        InfeasibleError: nothing fits, with what the nearest one needs
        InputError: a pin names a module that the network does not have
    """
    found = _search_in_line(problem, trials)
    return found if problem.room is None else fed(found, problem, _search_in_line)


def _search_in_line(problem: Problem, trials: Trials | None = None) -> Search:
    """The same, where each rank's own thread loads."""
    begun_s = time.monotonic()
    # A module that is not there is told before anything else.
    problem.pins.rows(problem.graph)
    limit_s = float("inf") if problem.time_limit_s is None else problem.time_limit_s
    hunt = Hunt(problem=problem, trials=trials or Trials(problem), until_s=begun_s + limit_s)
    strategies, rejected = enumerate_strategies(
        problem.graph,
        devices=problem.devices,
        batch=problem.batch,
        executions=problem.executions,
        pins=problem.pins,
        hosts=problem.cluster.hosts,
    )
    hunt.rejected += rejected
    failed = [strategy for strategy in strategies if way_of(strategy) in problem.failed]
    hunt.rejected += [
        Rejection(strategy=strategy, cause="failed", reason=problem.failed[way_of(strategy)]) for strategy in failed
    ]
    strategies = [strategy for strategy in strategies if way_of(strategy) not in problem.failed]
    left = find_fastest(_outlines(strategies, hunt), hunt)
    ruled_out = fill_up(left, hunt) if hunt.candidates else []
    refine_buckets(hunt, [prospect.strategy for prospect in ruled_out])
    hunt.candidates += virtualized(problem, hunt.rejected)
    if not hunt.candidates:
        raise nothing_fits(problem, hunt.rejected)
    return _conclude(hunt, ruled_out, seconds=time.monotonic() - begun_s)


def _conclude(hunt: Hunt, ruled_out: Sequence[Prospect], *, seconds: float) -> Search:
    problem, candidates = hunt.problem, hunt.candidates
    candidates.sort(key=lambda candidate: (candidate.objective_s, simplicity(candidate.strategy)))
    chosen = choose(candidates)
    hunt.rejected += [too_slow(prospect, chosen) for prospect in ruled_out]
    others, lacking = unpinned_references(problem, hunt.trials)
    known = [*candidates, *others]
    baseline = baseline_of(known)
    baselines = baselines_of(problem, known, [*hunt.rejected, *lacking])
    told = {id(one.candidate) for one in baselines}
    references = [
        candidate
        for candidate in known
        if candidate is baseline or id(candidate) in told or is_reference(candidate.strategy, devices=problem.devices)
    ]
    return Search(
        candidates=tuple(candidates),
        chosen=chosen,
        baseline=baseline,
        rejected=tuple(sorted(hunt.rejected, key=lambda rejection: simplicity(rejection.strategy))),
        references=tuple(references),
        pareto=pareto_front(candidates),
        baselines=baselines,
        bound_s=_bound(hunt),
        seconds=seconds,
        is_complete=hunt.is_complete,
    )


def _bound(hunt: Hunt) -> float:
    """What nothing that may be chosen takes less than [s]: a placement may be better by what its solver left open."""
    least = [candidate.objective_s * hunt.trials.floors.get(candidate.strategy, 1.0) for candidate in hunt.candidates]
    return min([*least, hunt.lowest_s])


def _outlines(strategies: Iterable[Strategy], hunt: Hunt) -> list[Prospect]:
    """The strategies that may fit, by their bounds from totals; the others are rejected."""
    found = []
    for uncut in strategies:
        seen = hunt.trials.outline(uncut)
        if isinstance(seen, Rejection):
            hunt.rejected.append(seen)
        else:
            found.append(seen)
    return sorted(found, key=order_of)
