"""Placements by chance: every stretch between two cuts on any row, in as few parts as chance allows."""

import random
from collections.abc import Mapping, Sequence

from trimaran.graph.types import Graph
from trimaran.program.strategy import Part


def draw_parts(graph: Graph, rows: int, seed: int) -> tuple[Part, ...]:
    """Deal the stretches of a graph out to rows; a stretch joins an earlier part of its row where no circle results."""
    generator = random.Random(seed)
    stretches = [{op.id for op in ops} for ops in graph.parts(graph.split_points)]
    dealt = [generator.randrange(rows) for _ in stretches]
    dealt[:rows] = range(rows)
    needs = _needs(graph, stretches)
    part_of: list[int] = []
    for number, row in enumerate(dealt):
        candidates = sorted({part_of[other] for other in range(number) if dealt[other] == row})
        generator.shuffle(candidates)
        fresh = max(part_of, default=-1) + 1
        part_of.append(next((to for to in candidates if _runs([*part_of, to], needs)), fresh))
    order = _order(part_of, needs)
    members = [[op.id for op in graph.ops if part_of[_home(stretches, op.id)] == part] for part in order]
    return tuple(Part(ops=tuple(ops), row=dealt[part_of.index(part)]) for part, ops in zip(order, members, strict=True))


def _home(stretches: Sequence[set[str]], op: str) -> int:
    return next(number for number, ops in enumerate(stretches) if op in ops)


def _needs(graph: Graph, stretches: Sequence[set[str]]) -> dict[int, set[int]]:
    made = {spec.name: _home(stretches, op.id) for op in graph.ops for spec in op.outputs}
    return {
        number: {made[name] for op in graph.ops if op.id in ops for name in op.inputs if name in made} - {number}
        for number, ops in enumerate(stretches)
    }


def _order(part_of: Sequence[int], needs: Mapping[int, set[int]]) -> list[int]:
    """Parts in an order in which they can run; shorter than there are parts where there is a circle."""
    left = dict.fromkeys(part_of)
    done: list[int] = []
    while True:
        ready = [
            part
            for part in left
            if part not in done
            and all(
                part_of[need] == part or part_of[need] in done
                for number, home in enumerate(part_of)
                if home == part
                for need in needs[number]
            )
        ]
        if not ready:
            return done
        done.append(ready[0])


def _runs(part_of: Sequence[int], needs: Mapping[int, set[int]]) -> bool:
    return len(_order(part_of, needs)) == len(set(part_of))
