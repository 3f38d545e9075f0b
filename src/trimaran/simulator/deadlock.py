"""Who waits for whom when a simulation stands still."""

from trimaran.errors import InputError
from trimaran.simulator.columns import Tasks


def deadlock(tasks: Tasks) -> InputError:
    """The error for tasks that wait for each other.

    Args:
        tasks: after a run that stood still; `waits` is not zero for those that could not start

    Returns:
        An error that names one circle of tasks, each with the one that it waits for.
    """
    prerequisite: dict[int, int] = {}
    for task, followers in enumerate(tasks.followers):
        if not tasks.waits[task]:
            continue
        waiting = followers + [follower for _, marked in tasks.marks.get(task, ()) for follower in marked]
        for follower in waiting:
            prerequisite.setdefault(follower, task)
    for task, number in tasks.queue.items():
        # All workers of a line are held by transfers that cannot start, or the next one would have been taken.
        if tasks.waits[task] and task not in tasks.queued[number]:
            for waiting_task in tasks.queued[number]:
                prerequisite.setdefault(waiting_task, task)
    # Every task that could not start waits for another one that could not, so the walk ends in a circle.
    walk = [next(task for task, waits in enumerate(tasks.waits) if waits)]
    while prerequisite[walk[-1]] not in walk:
        walk.append(prerequisite[walk[-1]])
    circle = walk[walk.index(prerequisite[walk[-1]]) :]
    names = [tasks.name(task) for task in circle]
    return InputError(
        "the program deadlocks: "
        + ", ".join(f"{name} waits for {other}" for name, other in zip(names, [*names[1:], names[0]], strict=True))
        + "; list sends, receives and collectives in an order that lets one of these go first",
        code="program.deadlock",
        circle=tuple(names),
    )
