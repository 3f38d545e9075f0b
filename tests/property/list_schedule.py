"""HEFT, written once more for the tests: mean transfers in the ranks, gaps on devices, wires one transfer at a time."""

from trimaran.placement.problem import PlacementProblem


def earliest_finish(problem: PlacementProblem) -> float:
    """Length of the step in which each task, by upward rank, runs where it ends first."""
    count = len(problem.nodes)
    consumers: list[list[int]] = [[] for _ in range(count)]
    producers: list[list[int]] = [[] for _ in range(count)]
    for a, b in sorted(set(problem.edges)):
        consumers[a].append(b)
        producers[b].append(a)
    wire = next(iter(problem.wires.values()))
    half = 1 - 1 / problem.devices
    back_rank = [0.0] * count
    for v in range(count):
        over = [half * wire.transfer_s(problem.nodes[p].backward_nbytes) + back_rank[p] for p in producers[v]]
        back_rank[v] = problem.nodes[v].backward_s + max(over, default=0.0)
    rank = [0.0] * count
    for v in reversed(range(count)):
        over = [half * wire.transfer_s(problem.nodes[v].nbytes) + rank[c] for c in consumers[v]]
        rank[v] = problem.nodes[v].forward_s + max([back_rank[v], *over])
    tasks = [(-rank[v], 0, v, "F") for v in range(count)] + [(-back_rank[v], 1, -v, "B") for v in range(count)]
    busy: dict[str, list[tuple[float, float]]] = {}
    end: dict[tuple[object, ...], float] = {}
    on = [0] * count

    def fit(where: str, ready: float, seconds: float) -> float:
        for start, stop in sorted(busy.get(where, [])):
            if ready + seconds <= start:
                break
            ready = max(ready, stop)
        return ready

    def carry(key: tuple[object, ...], where: str, ready: float, seconds: float, keep: bool) -> float:
        if key in end:
            return end[key]
        start = fit(where, ready, seconds)
        if keep:
            busy.setdefault(where, []).append((start, start + seconds))
            end[key] = start + seconds
        return start + seconds

    def forward(v: int, device: int, keep: bool) -> float:
        ready = 0.0
        for p in producers[v]:
            if on[p] == device:
                ready = max(ready, end["F", p])
            else:
                seconds = problem.wires[on[p], device].transfer_s(problem.nodes[p].nbytes)
                ready = max(ready, carry(("go", p, device), f"{on[p]}>{device}", end["F", p], seconds, keep))
        seconds = problem.nodes[v].forward_s
        start = fit(f"d{device}", ready, seconds)
        if keep:
            busy.setdefault(f"d{device}", []).append((start, start + seconds))
            end["F", v] = start + seconds
            on[v] = device
        return start + seconds

    for _, _, signed, phase in sorted(tasks):
        v = abs(signed)
        if phase == "F":
            forward(v, min(range(problem.devices), key=lambda device: forward(v, device, keep=False)), keep=True)
            continue
        ready = end["F", v]
        for device in sorted({on[c] for c in consumers[v]}):
            last = max(end["B", c] for c in consumers[v] if on[c] == device)
            if device != on[v]:
                seconds = problem.wires[device, on[v]].transfer_s(problem.nodes[v].backward_nbytes)
                last = carry(("back", v, device), f"{device}>{on[v]}", last, seconds, keep=True)
            ready = max(ready, last)
        seconds = problem.nodes[v].backward_s
        start = fit(f"d{on[v]}", ready, seconds)
        busy.setdefault(f"d{on[v]}", []).append((start, start + seconds))
        end["B", v] = start + seconds
    return max(end.values())
