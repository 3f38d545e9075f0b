"""What would help a rank that lacks memory: each remedy is a change of the record, from which all is read anew.

    record ──change──▶ record' ─┬─ memory of it ─▶ bytes that it saves, whether it fits then
                                └─ time of it ───▶ the step then

A change takes blocks later, gives them earlier or makes them smaller, and adds what that costs: kernels that run again,
copies to the host, collectives. There is no model of remedies: what one saves and costs is what `memory` and
`time` read of a script that does so by itself.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from trimaran.base.remedies import LOSS_ACTION, LOSS_ASSUMPTION, LOSS_PARTS, MemoryHelp, rank_memory_helps
from trimaran.base.units import format_bytes
from trimaran.graph.trace.logits import Logits, find_logits
from trimaran.rehearsal.memory import Story, live_blocks, outside_of, play_blocks, starred
from trimaran.rehearsal.prices import nbytes_of
from trimaran.rehearsal.record import (
    Collective,
    Event,
    Give,
    Issue,
    Kernel,
    Part,
    Purpose,
    Record,
    Run,
    Step,
    Sync,
    Take,
    TensorForm,
    Wait,
)
from trimaran.simulator.allocator import Settings

_LEAST_SAVED = 0.01
"""Of what is reserved; remedies that save less are not told."""

Change = Callable[[Story], Record]
"""The record of a rank of the same script with a remedy; the argument stays as it is."""

StepThen = Callable[[Change, Record, bool], float | None]
"""The step with a change, own record with it, and whether hosts update their parameters [s]; None: not known."""


def memory_remedies(
    record: Record,
    *,
    settings: Settings | None = None,
    step_then: StepThen = lambda change, changed, on_host: None,
    host_room: int | None = None,
) -> tuple[MemoryHelp, ...]:
    """Known remedies that save memory of a rank, those that are enough first, then those with the shortest step.

    Args:
        record: of the rank
        settings: of the allocator; None: those of the record
        step_then: times a change
        host_room: of the host's memory, for each rank [bytes]; None: not known
    """
    settings = Settings.parse(record.allocator) if settings is None else settings
    story = Story(record)
    before = play_blocks(story, settings, None)
    outside = outside_of(record)
    room = record.memory_bytes - outside.context - outside.most
    ranks = min(record.per_node, record.world)
    found = []
    for remedy in _remedies(story, live_blocks(story, before.peak_at), settings):
        changed = remedy.change(story)
        then = Story(changed)
        with_it = settings if remedy.settings is None else remedy.settings
        after = play_blocks(then, with_it, None)
        saves = before.reserved - after.reserved
        if saves < _LEAST_SAVED * before.reserved:
            continue
        refused = ""
        if host_room is not None and remedy.host_bytes > host_room:
            refused = (
                f"{format_bytes(ranks * remedy.host_bytes)} on the host of {ranks} ranks, which has room for "
                f"{format_bytes(ranks * host_room)}"
            )
        fits = after.reserved <= room or (
            then.least <= room and play_blocks(then, with_it, room, ends_short=True).short is None
        )
        found.append(
            MemoryHelp(
                id=remedy.id,
                rank=record.rank,
                name=remedy.name,
                action=remedy.action,
                saves_bytes=saves,
                reserved_bytes=after.reserved,
                fits=fits and not refused,
                basis=f"{format_bytes(before.reserved)} reserved become {format_bytes(after.reserved)}; "
                f"{remedy.basis}.",
                assumption=remedy.assumption,
                step_time_s=step_then(remedy.change, changed, remedy.id == "offload-state"),
                host_bytes=ranks * remedy.host_bytes,
                refused=refused,
            )
        )
    return rank_memory_helps(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remedy:
    """A remedy before it is played.

    Attributes:
        change: of the record of any rank of the script
        settings: of the allocator; None: as they are
        host_bytes: of a rank on its host at most [bytes]
    """

    id: str
    name: str
    action: str
    basis: str
    assumption: str
    change: Change
    settings: Settings | None = None
    host_bytes: int = 0


def _remedies(story: Story, at_peak: set[int], settings: Settings) -> Iterator[_Remedy]:
    if not settings.expandable:
        yield _Remedy(
            id="growing-segments",
            name="segments that grow",
            action="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            basis="blocks and their order stay",
            assumption="nothing more.",
            change=lambda story: story.record,
            settings=Settings(
                expandable=True, steps=settings.steps, most_split_bytes=settings.most_split_bytes, notes=settings.notes
            ),
        )
    yield from _of_modules(story, at_peak)
    yield from _of_loss(story)
    yield from _of_state(story)
    yield from _of_batch(story)


class _Edit:
    """A record with events added or changed.

    Args:
        record: it stays as it is

    Attributes:
        before: events that are added before that of a position
        after: likewise after it
        instead: events in its place
        kernels: of the record, and those that are added
        collectives: likewise
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self.before: defaultdict[int, list[Event]] = defaultdict(list)
        self.after: defaultdict[int, list[Event]] = defaultdict(list)
        self.instead: dict[int, Sequence[Event]] = {}
        self.kernels = list(record.kernels)
        self.collectives = list(record.collectives)
        self._shares: dict[tuple[int, float], int] = {}

    def record(self) -> Record:
        """The changed one."""
        events: list[Event] = []
        for place, event in enumerate(self._record.events):
            events += self.before.get(place, ())
            events += self.instead.get(place, (event,))
            events += self.after.get(place, ())
        return replace(self._record, events=events, kernels=self.kernels, collectives=self.collectives)

    def kernel(self, kernel: Kernel) -> int:
        """The index of a kernel that is added."""
        self.kernels.append(kernel)
        return len(self.kernels) - 1

    def part_of(self, kernel: int, share: float) -> int:
        """The index of a kernel that does a share of another's work."""
        key = (kernel, share)
        if key not in self._shares:
            known = self.kernels[kernel]
            self._shares[key] = self.kernel(replace(known, share=known.share * share))
        return self._shares[key]

    def in_parts(self, run: Run, parts: int) -> list[Event]:
        """A launch as several ones, each of a part of its work."""
        return [replace(run, kernel=self.part_of(run.kernel, 1.0 / parts))] * parts

    def again(self, number: int, nbytes: int) -> int:
        """The number of a collective like another one."""
        self.collectives.append(replace(self.collectives[number], nbytes=nbytes))
        return len(self.collectives) - 1

    def gather(self, group: str, nbytes: int, part: Part) -> int:
        """The number of an all-gather that is added."""
        made = Collective("all_gather", "", group, (), (), nbytes, -1, 0, True, -1, (), 0, 0, part)
        self.collectives.append(made)
        return len(self.collectives) - 1

    def resize(self, parts: dict[int, int]) -> None:
        """Blocks get a part of their size; 0: none of it."""
        for place, event in enumerate(self._record.events):
            if type(event) is Take and event.block in parts:
                part = parts[event.block]
                self.instead[place] = (replace(event, nbytes=-(-event.nbytes // part) if part else 0),)

    def share_updates(self, share: float) -> None:
        """Kernels of the update do a share of their work; 0: they do not run."""
        for place, event in enumerate(self._record.events):
            if type(event) is Run and event.part == "update":
                self.instead[place] = (replace(event, kernel=self.part_of(event.kernel, share)),) if share else ()


def _most(story: Story, blocks: Iterable[int]) -> str:
    """Most bytes of some blocks that are live at once."""
    wanted, now, most = set(blocks), 0, 0
    for event in story.record.events:
        if type(event) is Take and event.block in wanted:
            now += event.nbytes
            most = max(most, now)
        elif type(event) is Give and event.block in wanted:
            now -= story.takes[event.block].nbytes
    return format_bytes(most)


# ---------------------------------------------------------------------------------------------------------------------
# Smaller microbatches


def _of_batch(story: Story) -> Iterator[_Remedy]:
    scaled = _following_batch(story)
    if scaled and _samples(story.record) != 1:
        yield _Remedy(
            id="smaller-microbatch",
            name="half the microbatch",
            action="Halve the samples of a microbatch, and accumulate the gradients of twice as many.",
            basis=f"{_most(story, scaled)} of its blocks follow the batch",
            assumption="activations, inputs and temporaries of forward and backward halve, and their kernels run twice "
            "with half the work; gradients stay meanwhile and are summed once; what gathers parameters runs twice.",
            change=_halved,
        )


def _following_batch(story: Story) -> list[int]:
    def follows(block: int, purpose: Purpose) -> bool:
        is_passing = purpose == "temporary" and story.takes[block].part in ("forward", "backward")
        return purpose in ("activation", "input") or is_passing

    return [block for block, purpose in story.purpose.items() if follows(block, purpose)]


def _samples(record: Record) -> int:
    """Samples of a microbatch, by the largest embedding or the first convolution; 0: neither is there."""
    largest, samples = 0, 0
    for kernel in record.kernels:
        if kernel.name.startswith("aten.embedding.") and len(kernel.inputs) > 1:
            shape = kernel.inputs[1].shape
            places = 1
            for size in shape:
                places *= size
            if len(shape) > 1 and places > largest:
                largest, samples = places, shape[0]
    if samples:
        return samples
    return next((one.inputs[0].shape[0] for one in record.kernels if "convolution" in one.name and one.inputs), 0)


def _halved(story: Story) -> Record:
    record = story.record
    edit = _Edit(record)
    edit.resize(dict.fromkeys(_following_batch(story), 2))
    summed, _ = _replicas(record)
    begins = 0
    twice: dict[int, int] = {}
    for place, event in enumerate(record.events):
        if type(event) is Step:
            begins = place + 1
        elif type(event) is Take and event.part == "backward" and story.purpose[event.block] == "gradient":
            # The gradient of the first half is there while the second one runs.
            edit.before[begins].append(event)
            edit.instead[place] = ()
        elif type(event) is Run and event.part in ("forward", "backward"):
            edit.instead[place] = edit.in_parts(event, 2)
        elif type(event) is Issue:
            one = record.collectives[event.collective]
            if one.part not in ("forward", "backward") or (one.operation == "all_reduce" and one.group == summed):
                continue
            whole = one.operation in ("all_gather", "reduce_scatter")
            nbytes = one.nbytes if whole else -(-one.nbytes // 2)
            edit.collectives[event.collective] = replace(one, nbytes=nbytes)
            twice[event.collective] = edit.again(event.collective, nbytes)
            edit.after[place].append(Issue(twice[event.collective]))
        elif type(event) is Wait and event.collective in twice:
            edit.after[place].append(Wait(twice[event.collective], event.stream))
    return edit.record()


# ---------------------------------------------------------------------------------------------------------------------
# The loss in chunks


def _of_loss(story: Story) -> Iterator[_Remedy]:
    logits = _logits(story.record)
    blocks = [] if logits is None else _logits_blocks(story.record, logits)
    if logits is None or not blocks:
        return
    yield _Remedy(
        id="chunked-loss",
        name="loss in chunks",
        action=LOSS_ACTION,
        basis=f"{_most(story, blocks)} are scores of {logits.classes:,} classes, their copies and gradients",
        assumption=LOSS_ASSUMPTION,
        change=_chunked,
    )


def _logits(record: Record) -> Logits | None:
    return find_logits((kernel.name, [form.shape for form in kernel.inputs]) for kernel in record.kernels)


def _logits_blocks(record: Record, logits: Logits) -> list[int]:
    """Blocks of the results of kernels that are as large as the scores: those that are taken after their launch."""
    found: list[int] = []
    sizes: set[int] = set()
    for event in record.events:
        if type(event) is Run:
            outputs = record.kernels[event.kernel].outputs
            sizes = {nbytes_of(form) for form in outputs if logits.holds(form.shape)}
        elif type(event) is Take and event.nbytes in sizes and event.part in ("forward", "backward"):
            found.append(event.block)
    return found


def _chunked(story: Story) -> Record:
    record = story.record
    logits = _logits(record)
    if logits is None:
        return record
    edit = _Edit(record)
    edit.resize(dict.fromkeys(_logits_blocks(record, logits), LOSS_PARTS))
    concerned = [logits.concern(form.shape for form in (*one.inputs, *one.outputs)) for one in record.kernels]
    weights = {
        form: edit.kernel(Kernel("aten.add_.Tensor", (form, form), (form,), {}, 0))
        for kernel, asks in zip(record.kernels, concerned, strict=True)
        for form in kernel.outputs
        if asks and not logits.holds(form.shape) and logits.classes in form.shape
    }
    again: list[Event] = []
    first = 0
    for place, event in enumerate(record.events):
        if type(event) is Step:
            again = []
        if type(event) is not Run or not concerned[event.kernel] or event.part not in ("forward", "backward"):
            continue
        if event.part == "forward":
            edit.instead[place] = runs = edit.in_parts(event, LOSS_PARTS)
            again += [replace(one, part="backward") for one in runs if type(one) is Run]
            continue
        first = place if again else first
        edit.instead[place] = [*again, *edit.in_parts(event, LOSS_PARTS)]
        again = []
        # Each chunk but the first adds its gradient of the head's weight to that of the others, which is there since.
        for form in record.kernels[event.kernel].outputs:
            if form in weights:
                block = -2 - place
                edit.before[first].append(
                    Take(block, nbytes_of(form), event.stream, "gradient", event.lines, event.module, "backward")
                )
                edit.after[place] += [*[replace(event, kernel=weights[form])] * (LOSS_PARTS - 1), Give(block)]
    return edit.record()


# ---------------------------------------------------------------------------------------------------------------------
# Parameters, gradients and state


def _by_purpose(story: Story) -> tuple[list[int], list[int], list[int]]:
    """Blocks of the optimizer's state, of gradients and of parameters."""
    found: defaultdict[Purpose, list[int]] = defaultdict(list)
    for block, purpose in story.purpose.items():
        found[purpose].append(block)
    return found["optimizer"], found["gradient"], found["parameter"]


def _of_state(story: Story) -> Iterator[_Remedy]:
    """State of the optimizer on the host; what replicas keep, sharded over the group that sums gradients."""
    optimizer, gradients, parameters = _by_purpose(story)
    if optimizer:
        yield _Remedy(
            id="offload-state",
            name="state of the optimizer on the host",
            action="Keep the state of the optimizer on the host and update there.",
            basis=f"{_most(story, optimizer)} are state of the optimizer",
            assumption="nothing of it stays on the device; gradients are copied to the host, parameters back, and its "
            "cores update them as fast as DeepSpeed's Adam does.",
            change=_updated_on_host,
            host_bytes=sum(story.takes[block].nbytes for block in optimizer),
        )
    _, replicas = _replicas(story.record)
    if replicas < 2:
        return
    if optimizer:
        yield _Remedy(
            id="shard-state",
            name=f"state of the optimizer sharded over {replicas} ranks",
            action=f"Shard the state of the optimizer over the {replicas} ranks that sum gradients (ZeRO-1, "
            "ZeroRedundancyOptimizer).",
            basis=f"{_most(story, optimizer)} are state of the optimizer",
            assumption="it divides evenly; parameters are gathered after each update.",
            change=_zero_one,
        )
    yield _Remedy(
        id="shard-state",
        name=f"parameters, gradients and state sharded over {replicas} ranks",
        action=f"Wrap the model's layers in fully_shard over the {replicas} ranks that sum gradients.",
        basis=f"{_most(story, [*optimizer, *gradients, *parameters])} are parameters, gradients and state",
        assumption="it divides evenly; two of the largest layers and what is in none, "
        f"{format_bytes(_gathered(_module_bytes(story, parameters)))}, are whole at a time, gathered while the one "
        "before computes.",
        change=_fully_sharded,
    )


def host_update(record: Record) -> tuple[int, int]:
    """Parameters that a rank updates, and bytes of a gradient: four where a kernel of the update has 32 bits."""
    story = Story(record)
    _, _, parameters = _by_purpose(story)
    kernels = {event.kernel for event in record.events if type(event) is Run and event.part == "update"}
    dtypes = {form.dtype for number in kernels for form in record.kernels[number].inputs if len(form.shape) > 1}
    nbytes = 2 if dtypes and "float32" not in dtypes else 4
    return sum(story.takes[block].nbytes for block in parameters) // nbytes, nbytes


def _updated_on_host(story: Story) -> Record:
    edit = _Edit(story.record)
    edit.share_updates(0.0)
    optimizer, _, _ = _by_purpose(story)
    edit.resize(dict.fromkeys(optimizer, 0))
    return edit.record()


def _zero_one(story: Story) -> Record:
    record = story.record
    group, replicas = _replicas(record)
    if replicas < 2:
        return record
    edit = _Edit(record)
    optimizer, _, parameters = _by_purpose(story)
    edit.share_updates(1.0 / replicas)
    edit.resize(dict.fromkeys(optimizer, replicas))
    nbytes = sum(story.takes[block].nbytes for block in parameters)
    for end in story.ends:
        number = edit.gather(group, nbytes, "update")
        edit.before[end] += [Issue(number), Wait(number, 0)]
    return edit.record()


def _fully_sharded(story: Story) -> Record:
    record = story.record
    group, replicas = _replicas(record)
    if replicas < 2:
        return record
    edit = _Edit(record)
    optimizer, gradients, parameters = _by_purpose(story)
    edit.share_updates(1.0 / replicas)
    given = {event.block for event in record.events if type(event) is Give}
    # Buckets in which whole gradients are summed stay for good.
    buckets = [block for block, use in story.purpose.items() if use == "communication" and block not in given]
    edit.resize(dict.fromkeys([*optimizer, *gradients, *parameters, *buckets], replicas))
    sizes = _module_bytes(story, parameters)
    edit.before[0].append(Take(-1, _gathered(sizes), 0, "communication", 0, 0, "setup"))
    for number, one in enumerate(record.collectives):
        if one.operation == "all_reduce" and one.group == group and one.part in ("backward", "update"):
            edit.collectives[number] = replace(one, operation="reduce_scatter")
    visits, backwards = _visits(story)
    uses: list[tuple[int, str, Part]] = [(visit.start, visit.module, "forward") for visit in visits]
    uses += [(place, module, "backward") for module, places in backwards.items() for place in places]
    asked: int | None = None
    for place, module, part in sorted(uses):
        if not sizes.get(module):
            continue
        number = edit.gather(group, sizes[module], part)
        # While the layer before computes.
        edit.before[place if asked is None else asked].append(Issue(number))
        edit.before[place].append(Wait(number, 0))
        asked = place
    return edit.record()


def _replicas(record: Record) -> tuple[str, int]:
    """The group over which most bytes of gradients are summed whole, and its ranks; "" and 1: none are."""
    sums: Counter[str] = Counter()
    for collective in record.collectives:
        if collective.operation == "all_reduce" and collective.part in ("backward", "update"):
            sums[collective.group] += collective.nbytes
    groups = [name for name, _ in sums.most_common() if name in record.groups]
    if not groups or sums[groups[0]] < _LEAST_SAVED * sum(one.nbytes for one in record.collectives):
        return "", 1
    return groups[0], len(record.groups[groups[0]].ranks)


def _module_bytes(story: Story, blocks: Iterable[int]) -> Counter[str]:
    """Bytes of some blocks by numbered module; "": of none."""
    found: Counter[str] = Counter()
    for block in blocks:
        take = story.takes[block]
        found[_instance(story.record.modules[take.module])] += take.nbytes
    return found


def _gathered(sizes: Counter[str]) -> int:
    """Parameters of sharded layers that are whole at a time [bytes]."""
    return sizes[""] + 2 * max((nbytes for module, nbytes in sizes.items() if module), default=0)


def _instance(module: str) -> str:
    """The outermost numbered module that a path is in, such as "model.layers.3"; "": none."""
    parts = module.split(".")
    for index, part in enumerate(parts):
        if part.isdecimal() and index > 0:
            return ".".join(parts[: index + 1])
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# Activations of numbered modules: gone after the forward until the backward


@dataclass(slots=True)
class _ModulePass:
    """One forward of a numbered module: its events, and the blocks that are taken in it."""

    module: str
    start: int
    end: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class _Pause:
    """Blocks of a visit that are not there from its end until its backward starts."""

    visit: _ModulePass
    until: int
    blocks: list[int]


def _of_modules(story: Story, at_peak: set[int]) -> Iterator[_Remedy]:
    by_kind: defaultdict[str, list[_Pause]] = defaultdict(list)
    for pause in _pauses(story):
        by_kind[starred(pause.visit.module)].append(pause)
    for kind, pauses in by_kind.items():
        held = {block for pause in pauses for block in pause.blocks}
        if not held & at_peak:
            continue
        largest = max(sum(story.takes[block].nbytes for block in pause.blocks) for pause in pauses)
        basis = f"{_most(story, held)} of activations are made in {kind}, at most {format_bytes(largest)} in one"
        yield _Remedy(
            id="recompute",
            name=f"recompute {kind}",
            action=f"Wrap each of {kind} in torch.utils.checkpoint.",
            basis=basis,
            assumption="its input and output are kept; its forward runs again when its backward begins.",
            change=partial(_recomputed, kind=kind),
        )
        yield _Remedy(
            id="offload",
            name=f"activations of {kind} on the host",
            action=f"Copy activations of {kind} to the host after its forward "
            "(torch.autograd.graph.save_on_cpu(pin_memory=True)).",
            basis=basis,
            assumption="the host waits for each copy, all ranks of a node copy at once, and nothing overlaps with "
            "it; they come back when its backward begins.",
            change=partial(_offloaded, kind=kind),
            host_bytes=_most_away(story, pauses),
        )


def _pauses(story: Story) -> Iterator[_Pause]:
    visits, backwards = _visits(story)
    given = {event.block: place for place, event in enumerate(story.record.events) if type(event) is Give}
    last = len(story.record.events)
    for visit in visits:
        kept = [
            block
            for block in visit.blocks
            if given.get(block, last) > visit.end and story.purpose[block] in ("activation", "temporary")
        ][:-1]  # the last one is its output
        starts = backwards.get(visit.module, [])
        ends = [given[block] for block in kept if block in given]
        position = bisect_right(starts, max(ends, default=-1)) - 1
        if position >= 0 and starts[position] > visit.end:
            until = starts[position]
            yield _Pause(visit, until, [block for block in kept if given.get(block, last) >= until])


def _visits(story: Story) -> tuple[list[_ModulePass], dict[str, list[int]]]:
    """Forwards of numbered modules, and where their backwards start."""
    names = [_instance(module) for module in story.record.modules]
    visits: list[_ModulePass] = []
    backwards: defaultdict[str, list[int]] = defaultdict(list)
    open_visit: _ModulePass | None = None
    in_backward = ""
    for index, event in enumerate(story.record.events):
        if not isinstance(event, Take | Run):
            continue
        name = names[event.module]
        if event.part == "forward":
            in_backward = ""
            if open_visit is not None and open_visit.module != name:
                visits.append(open_visit)
                open_visit = None
            if name and open_visit is None:
                open_visit = _ModulePass(name, index, index, [])
            if open_visit is not None:
                open_visit.end = index
                if isinstance(event, Take):
                    open_visit.blocks.append(event.block)
        else:
            if open_visit is not None:
                visits.append(open_visit)
                open_visit = None
            if event.part == "backward" and name and name != in_backward:
                backwards[name].append(index)
                in_backward = name
    if open_visit is not None:
        visits.append(open_visit)
    return visits, backwards


def _most_away(story: Story, pauses: Iterable[_Pause]) -> int:
    """Bytes of paused blocks that are on the host at once, at most [bytes]."""
    changes: Counter[int] = Counter()
    for pause in pauses:
        nbytes = sum(story.takes[block].nbytes for block in pause.blocks)
        changes[pause.visit.end] += nbytes
        changes[pause.until] -= nbytes
    now = most = 0
    for place in sorted(changes):
        now += changes[place]
        most = max(most, now)
    return most


def _paused(story: Story, kind: str) -> tuple[_Edit, list[_Pause]]:
    """The record without the blocks of the visits of a kind of modules until their backward."""
    record = story.record
    edit = _Edit(record)
    pauses = [one for one in _pauses(story) if one.blocks and starred(one.visit.module) == kind]
    for pause in pauses:
        # As the forward goes on, each when two later results are there: what makes one may read the one before.
        taken = [place for place in range(pause.visit.start, pause.visit.end + 1) if type(record.events[place]) is Take]
        paused = set(pause.blocks)
        for number, place in enumerate(taken):
            event = record.events[place]
            if type(event) is Take and event.block in paused:
                until = taken[number + 3] - 1 if number + 3 < len(taken) else pause.visit.end
                edit.after[until].append(Give(event.block))
        edit.before[pause.until] += [
            replace(story.takes[block], purpose=story.purpose[block]) for block in pause.blocks
        ]
    return edit, pauses


def _recomputed(story: Story, kind: str) -> Record:
    record = story.record
    edit, pauses = _paused(story, kind)
    for pause in pauses:
        again: dict[int, int] = {}
        for event in record.events[pause.visit.start : pause.visit.end + 1]:
            if type(event) is Run and event.part == "forward":
                edit.before[pause.until].append(replace(event, part="backward"))
            elif type(event) is Issue and record.collectives[event.collective].stream == 0:
                # What is asked for on other streams gathers parameters, which the backward does by itself.
                again[event.collective] = edit.again(event.collective, record.collectives[event.collective].nbytes)
                edit.before[pause.until].append(Issue(again[event.collective]))
            elif type(event) is Wait and event.collective in again:
                edit.before[pause.until].append(Wait(again[event.collective], event.stream))
    return edit.record()


def _offloaded(story: Story, kind: str) -> Record:
    edit, pauses = _paused(story, kind)
    copies: dict[tuple[int, str], int] = {}

    def copy(block: int, to: str, part: Part) -> Run:
        take = story.takes[block]
        if (take.nbytes, to) not in copies:
            ends = [TensorForm((take.nbytes,), "uint8", device) for device in ("cuda", "cpu")]
            source, target = ends if to == "cpu" else ends[::-1]
            copies[take.nbytes, to] = edit.kernel(Kernel("aten.copy_.default", (source,), (target,), {}, 0))
        return Run(copies[take.nbytes, to], 0, take.lines, take.module, part)

    for events in edit.after.values():
        left = [event.block for event in events if type(event) is Give]
        events[:0] = [one for block in left for one in (copy(block, "cpu", "forward"), Sync(0, 0))]
    for pause in pauses:
        edit.before[pause.until] += [copy(block, "cuda", "backward") for block in pause.blocks]
    return edit.record()
