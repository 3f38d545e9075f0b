"""Wall time of a long training with failures: checkpoints, restarts, spare nodes.

    ├── τ work ──┤c├── τ work ──┤c├── τ wo✗                 c  training waits for a checkpoint
                   ├─ w ─┤        ├─ w ─┤  ├─ R ─┤ work      w  until that checkpoint can be used
                         usable         usable  restart      R  from a failure until training goes on

Failures come at a constant rate r: times between them are exponential, and a failure may strike at any time, also while
a checkpoint is written or a restart is under way. With a = τ + c, the expected time is exactly

    from the start to the first usable checkpoint       (e^{r (a + w)} - 1) e^{r R} / r
    from one usable checkpoint to the next one          (e^{r a} - 1) e^{r (R + w)} / r

*Derivation.* An attempt that needs b without a failure, with a restart after each failure, takes E(b): all attempts
together (e^{rb} - 1)/r, and each of the e^{rb} - 1 failures a restart of (e^{rR} - 1)/r, which may fail too; together
(e^{rb} - 1) e^{rR} / r. Once a checkpoint is usable, the next one needs a; after a failure it needs a restart and, from
the state of the usable one, a + w. So it takes (1 - e^{-ra}) (1/r + (e^{rR} - 1)/r + E(a + w)), which is the second
line. A checkpoint that training waits for has w = 0 and all its time in c.

Both lines grow with the same factor in τ, so the best period does not depend on R or w: it solves
1 - rτ = e^{-r (τ + c)}. For rc → 0 it becomes √(2c/r) (Young), and Daly's series is its expansion.

Wall time is Poisson in its failures: a run of expected time T has rT of them, and spends T (1 - e^{-rR}) in restarts.

Source:
    Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, whose expected time is the case
    w = 0.
"""

import functools
import math
import re
from dataclasses import dataclass, field, replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.files import packaged_toml
from trimaran.base.units import parse_rate, parse_seconds

Ends = tuple[float, float, float]
"""A figure at the end that is good for the run, in the middle, and at the end that is bad for it."""

DAY_S = 86_400.0
"""Seconds of a day."""

_MOST = 500.0
"""Exponents from here on are without end."""

_MOST_IN_REPAIR = 1000.0
"""Nodes at a time."""

_ENOUGH = 0.99
"""Probability that the spare nodes are enough which a run is told of that asks for none."""

_NO_PROGRESS = 1000.0
"""A run that takes this multiple of its work makes no progress."""

_NINETY = 1.645
"""Standard deviations of a normal distribution from its middle to the ends of its 90 % interval."""


# ---------------------------------------------------------------------------------------------------------------------
# One run with known figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How often a run fails, and what checkpoints and restarts take.

    Attributes:
        rate: failures of all devices of the run together [1/s]
        restart_s: from a failure until training goes on from its checkpoint [s]
        stall_s: for which training waits at each checkpoint [s]
        write_s: after that wait, until the checkpoint can be used [s]; 0: training waits until then
    """

    rate: float
    restart_s: float = 0.0
    stall_s: float = 0.0
    write_s: float = 0.0


def expected_seconds(work_s: float, checkpoints: int, recovery: Recovery) -> float:
    """Expected time until the last of some equally spaced checkpoints can be used; infinite where it never is [s].

    Args:
        work_s: of the training without failures and checkpoints [s]
        checkpoints: how many, the last one at the end
        recovery: failures, checkpoints and restarts

    Example:
        One checkpoint after 100 s, no wait and no restart, a failure each 100 s on average: (e - 1) · 100 s.

        >>> round(expected_seconds(100.0, 1, Recovery(rate=0.01)), 2)
        171.83
        >>> expected_seconds(100.0, 4, Recovery(rate=0.0, stall_s=2.0, write_s=1.0))
        109.0
    """
    rate, restart, write = recovery.rate, recovery.restart_s, recovery.write_s
    each = work_s / checkpoints + recovery.stall_s
    if rate <= 0.0:
        return checkpoints * each + write
    if rate * (each + write + restart) > _MOST:
        return math.inf
    first = math.expm1(rate * (each + write)) * math.exp(rate * restart) / rate
    return first + (checkpoints - 1) * math.expm1(rate * each) * math.exp(rate * (restart + write)) / rate


def variance(work_s: float, checkpoints: int, recovery: Recovery) -> float:
    """Variance of the time whose mean is `expected_seconds` [s²].

    The times from one usable checkpoint to the next are independent, and each is a sum of independent attempts: a
    geometric number of failed ones, each with its restart, and the one that ends.

    Args:
        work_s: as of `expected_seconds` [s]
        checkpoints: as of `expected_seconds`
        recovery: as of `expected_seconds`

    Example:
        Without restarts, a second that has to be free of failures, at one failure a second: the number of failures is
        geometric with mean e - 1; the variance is e² - 2e - 1.

        >>> round(variance(1.0, 1, Recovery(rate=1.0)), 6) == round(math.e**2 - 2 * math.e - 1, 6)
        True
    """
    rate, write = recovery.rate, recovery.write_s
    each = work_s / checkpoints + recovery.stall_s
    if rate <= 0.0:
        return 0.0
    if rate * (each + write + recovery.restart_s) > _MOST:
        return math.inf
    restart = _attempts(recovery.restart_s, rate, (0.0, 0.0))
    first = _attempts(each + write, rate, restart)
    # The next one: at once with probability p, else a failure, a restart, and attempts from the checkpoint.
    failed, squared = _failed(each, rate)
    p = math.exp(-rate * each)
    mean = failed + restart[0] + first[0]
    spread = squared - failed**2 + restart[1] + first[1]
    middle = p * each + (1.0 - p) * mean
    following = p * (each - middle) ** 2 + (1.0 - p) * (spread + (mean - middle) ** 2)
    return first[1] + (checkpoints - 1) * following


def _failed(need_s: float, rate: float) -> tuple[float, float]:
    """Mean and mean square of the time until a failure that strikes before `need_s` is over."""
    x = rate * need_s
    if x < 1e-3:
        # The difference of large figures below; of short attempts failures strike anywhere with equal probability.
        return need_s * (0.5 - x / 12.0), need_s**2 * (1.0 / 3.0 - x / 12.0)
    odds = 1.0 / math.expm1(x)
    return (1.0 - x * odds) / rate, (2.0 - (x * x + 2.0 * x) * odds) / rate**2


def _attempts(need_s: float, rate: float, restart: tuple[float, float]) -> tuple[float, float]:
    """Mean and variance of the time until an attempt of `need_s` passes, each failed one with a restart after it."""
    if need_s <= 0.0:
        return 0.0, 0.0
    failed, squared = _failed(need_s, rate)
    failures = math.expm1(rate * need_s)
    mean, spread = failed + restart[0], squared - failed**2 + restart[1]
    return need_s + failures * mean, failures * spread + failures * (failures + 1.0) * mean**2


def young_period(stall_s: float, rate: float) -> float:
    """Work between two checkpoints by Young's formula [s].

    Example:
        A wait of 5 s and a failure each 10,000 s: √(2 · 5 · 10,000).

        >>> round(young_period(5.0, 1e-4), 1)
        316.2
    """
    return math.sqrt(2.0 * stall_s / rate)


def daly_period(stall_s: float, rate: float) -> float:
    """Work between two checkpoints by Daly's formula [s].

    Example:
        >>> round(daly_period(5.0, 1e-4), 1)
        312.9
    """
    mean_s = 1.0 / rate
    if stall_s >= 2.0 * mean_s:
        return mean_s
    share = math.sqrt(stall_s / (2.0 * mean_s))
    return math.sqrt(2.0 * stall_s * mean_s) * (1.0 + share / 3.0 + share**2 / 9.0) - stall_s


def best_period(recovery: Recovery) -> float:
    """Work between two checkpoints that makes a long run shortest: 1 - rτ = e^{-r (τ + c)} [s].

    A checkpoint is not begun before the one before it is written, so τ + c is at least w.

    Args:
        recovery: with a rate above 0

    Example:
        >>> round(best_period(Recovery(rate=1e-4, stall_s=5.0)), 1)
        312.9
        >>> best_period(Recovery(rate=1e-4, stall_s=5.0, write_s=600.0))
        595.0
    """
    rate, wait = recovery.rate, recovery.rate * recovery.stall_s
    least = recovery.write_s - recovery.stall_s
    # Newton's iterations from above, where the function is convex: they fall without passing the root.
    x = min(1.0, math.sqrt(2.0 * wait))
    for _ in range(60):
        value, slope = x + math.expm1(-x - wait), -math.expm1(-x - wait)
        step = value / slope if slope > 0.0 else 0.0
        x -= step
        if abs(step) <= 1e-15 * x:
            break
    return max(x / rate, least, 0.0)


def best_checkpoints(work_s: float, recovery: Recovery, *, every_s: float | None = None, least_s: float = 0.0) -> int:
    """Number of equally spaced checkpoints that makes a run shortest, or that a given period asks for.

    Args:
        work_s: of the training [s]
        recovery: failures, checkpoints and restarts
        every_s: work between two checkpoints; None: what is best [s]
        least_s: work between two checkpoints is at least this, such as a step [s]

    Example:
        >>> best_checkpoints(100_000.0, Recovery(rate=1e-4, stall_s=5.0)), best_checkpoints(90.0, Recovery(rate=0.0))
        (320, 1)
    """
    if every_s is not None:
        return max(1, math.ceil(work_s / every_s))
    if recovery.rate <= 0.0:
        return 1
    period = max(best_period(recovery), least_s)
    fewer = max(1, math.floor(work_s / period)) if period > 0.0 else max(1, math.ceil(work_s))
    # A whole number of periods that are as long as they may be or longer, or one more of them.
    allowed = [fewer]
    if work_s / (fewer + 1) >= max(recovery.write_s - recovery.stall_s, least_s):
        allowed.append(fewer + 1)
    return min(allowed, key=lambda count: expected_seconds(work_s, count, recovery))


def longest_period(work_s: float, recovery: Recovery, *, checkpoints: int) -> float:
    """Work between two checkpoints that makes a run longer by 1 % of its expected time, and no more [s].

    Near its best the period hardly matters, and fewer checkpoints leave the storage to others.

    Args:
        work_s: of the training [s]
        recovery: failures, checkpoints and restarts
        checkpoints: number with which the run is shortest

    Example:
        Five seconds each and a failure each 10,000 s: every 676 s instead of 313 s costs 1 %.

        >>> round(longest_period(100_000.0, Recovery(rate=1e-4, stall_s=5.0), checkpoints=320))
        676
    """
    most = 1.01 * expected_seconds(work_s, checkpoints, recovery)
    low, high = 1, checkpoints
    while low < high:
        middle = (low + high) // 2
        if expected_seconds(work_s, middle, recovery) <= most:
            high = middle
        else:
            low = middle + 1
    return work_s / low


def spare_nodes(nodes: int, *, rate: float, repair_s: float, seconds: float, probability: float) -> int:
    """Fewest spare nodes with which a run never lacks a node, with a probability.

    Each failure takes its node away for a repair, whose time is exponential, and a spare one takes its place. The
    number of nodes in repair is a birth-death process: up by `nodes · rate`, down by 1 / `repair_s` for each of them.
    It starts at 0. The run lacks a node when more are in repair than there are spares.

    Args:
        nodes: that compute
        rate: failures of one node [1/s]
        repair_s: mean time of a repair [s]
        seconds: of the run [s]
        probability: that no node is lacking, at all times of the run [0..1)

    Raises:
        InfeasibleError: a thousand nodes and more would be in repair at a time

    Source:
        Erlang's loss system M/M/S/S, and its first passage to the loss of an arrival.

    Example:
        Ten nodes, each with a failure in 100 days and a repair of a day: in a run of 30 days 3 fail.

        >>> spare_nodes(10, rate=0.01 / DAY_S, repair_s=DAY_S, seconds=30 * DAY_S, probability=0.99)
        3
        >>> spare_nodes(10, rate=0.01 / DAY_S, repair_s=0.0, seconds=30 * DAY_S, probability=0.99)
        0
    """
    if rate <= 0.0 or repair_s <= 0.0 or not math.isfinite(seconds):
        return 0
    load, repairs = nodes * rate * repair_s, seconds / repair_s
    away = -load * math.expm1(-repairs)
    if away > _MOST_IN_REPAIR:
        raise InfeasibleError(
            f"{away:,.0f} nodes would be in repair at a time, of {nodes:,} that compute: a repair takes "
            f"{repair_s / DAY_S:g} days, and a node fails once in {1.0 / rate / DAY_S:.3g}; say --repair and --mtbf",
            code="failures.repairs-too-long",
            nodes=nodes,
        )
    low, step = 0, 1 + round(math.sqrt(away))
    high = math.ceil(away)
    while survival(high, load=load, repairs=repairs) < probability:
        low, high, step = high + 1, high + step, 2 * step
    while low < high:
        middle = (low + high) // 2
        if survival(middle, load=load, repairs=repairs) < probability:
            low = middle + 1
        else:
            high = middle
    return low


def survival(spares: int, *, load: float, repairs: float) -> float:
    """Probability that never more nodes are in repair than there are spares, from none in repair on.

    The process in steps of at most one expected event, by a sum of positive terms; then squared, so that no difference
    of large figures spoils a small probability.

    Args:
        spares: nodes
        load: nodes in repair in the long run, were there no end of spares
        repairs: length of the run, in mean times of a repair

    Example:
        Without a spare it is the probability of no failure: e^{-2} at two failures in the time of a repair.

        >>> round(survival(0, load=2.0, repairs=1.0), 6) == round(math.exp(-2.0), 6)
        True
    """
    import numpy as np

    states = np.arange(spares + 1, dtype=float)
    events = load + spares
    step = np.diag((spares - states) / events)
    step += np.diag(np.full(spares, load / events), 1) + np.diag(states[1:] / events, -1)
    doublings = max(0, math.ceil(math.log2(max(events * repairs, 1e-300))))
    each = events * repairs / 2.0**doublings
    power = np.eye(spares + 1) * math.exp(-each)
    moved = power.copy()
    for term in range(1, 20):
        power = power @ step * (each / term)
        moved += power
    for _ in range(doublings):
        moved = moved @ moved
    return float(moved[0].sum())


# ---------------------------------------------------------------------------------------------------------------------
# What is said of a cluster, and what is assumed of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failures, storage and repairs of a cluster, as far as the user says them; for the rest see `assumed`.

    Attributes:
        mtbf_s: mean time between failures of one device or one node [s]; None: `failures.toml`
        mtbf_of: what has that mean time: "device" or "node"
        checkpoint_bytes_per_s: at which checkpoints are written and read [bytes/s]; None: `failures.toml`
        checkpoint_rate_of: what has that rate: one "node", or the storage of "all" nodes
        every_s: work between two checkpoints; None: what is best [s]
        restart_s: from a failure until processes that run again ask for their checkpoint [s]; None: `failures.toml`
        repair_s: mean time until a failed node is back [s]; None: `failures.toml`
        spares: nodes that are held ready and paid; None: enough of them for `probability`
        probability: that a run never lacks a node, for the number of spare ones [0..1); None, without `spares`: none
            are held, nor paid
        waits: training waits until a checkpoint is written; else for its copy to the host alone
    """

    mtbf_s: float | None = None
    mtbf_of: str = "node"
    checkpoint_bytes_per_s: float | None = None
    checkpoint_rate_of: str = "all"
    every_s: float | None = None
    restart_s: float | None = None
    repair_s: float | None = None
    spares: int | None = None
    probability: float | None = None
    waits: bool = False

    @property
    def holds_spares(self) -> bool:
        """Whether somebody asked for spare nodes, which are then paid."""
        return self.spares is not None or self.probability is not None


ASSUMED = Reliability()
"""Nothing is said of the cluster."""


def parse_reliability(
    *,
    mtbf: str | None = None,
    checkpoint_rate: str | None = None,
    checkpoint_every: str | None = None,
    restart: str | None = None,
    repair: str | None = None,
    spares: str | None = None,
    checkpoint_waits: bool = False,
) -> Reliability:
    """Failures, storage and repairs as they are written on the command line.

    Args:
        mtbf: such as "180 days/node" or "4e7 s/device"
        checkpoint_rate: such as "200 GB/s", of all nodes together, or "2 GB/s/node"
        checkpoint_every: such as "10min"
        restart: such as "5min"
        repair: such as "1d"
        spares: a number of nodes such as "4", or a probability such as "99%" or "0.99"
        checkpoint_waits: as in `Reliability`

    Raises:
        InputError: a text that means nothing, a probability that no number of nodes reaches, or too many nodes

    Example:
        >>> found = parse_reliability(mtbf="180 days/node", checkpoint_rate="2 GB/s/node")
        >>> found.mtbf_s == 180 * DAY_S, found.mtbf_of, found.checkpoint_bytes_per_s, found.checkpoint_rate_of
        (True, 'node', 2000000000.0, 'node')
    """
    count, probability = (None, None) if spares is None else _spares(spares)
    found = Reliability(spares=count, probability=probability, waits=checkpoint_waits)
    if mtbf is not None:
        text, _, of = mtbf.replace(" per ", "/").rpartition("/")
        of = {"gpu": "device", "server": "node"}.get(of.strip(), of.strip())
        if not text or of not in ("device", "node"):
            raise InputError(
                'a mean time between failures is of one node or of one device, such as "180 days/node" or "1500 '
                f'days/device"; got "{mtbf}"',
                code="failures.mtbf-of-what",
                text=mtbf,
            )
        found = replace(found, mtbf_s=_above_zero(text, "--mtbf"), mtbf_of=of)
    if checkpoint_rate is not None:
        text, of = checkpoint_rate.strip(), "all"
        for end in ("/node", " per node"):
            if text.endswith(end):
                text, of = text.removesuffix(end), "node"
        found = replace(found, checkpoint_bytes_per_s=parse_rate(text), checkpoint_rate_of=of)
    return replace(
        found,
        every_s=None if checkpoint_every is None else _above_zero(checkpoint_every, "--checkpoint-every"),
        restart_s=None if restart is None else parse_seconds(restart),
        repair_s=None if repair is None else parse_seconds(repair),
    )


def _spares(text: str) -> tuple[int | None, float | None]:
    """Spare nodes by their number, or by the probability that they are enough.

    Example:
        >>> _spares("0"), _spares("99.9 %"), _spares("0.5")
        ((0, None), (None, 0.999), (None, 0.5))
    """
    share = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text.strip())
    if re.fullmatch(r"\d{1,4}", text.strip()) and int(text) <= _MOST_IN_REPAIR:
        return int(text), None
    probability = 0.0 if share is None else float(share[1]) / (100.0 if share[2] else 1.0)
    if not 0.0 < probability < 1.0:
        raise InputError(
            f"--spares is a number of nodes up to {_MOST_IN_REPAIR:,.0f}, such as 4, or the probability that they are "
            f'enough, above 0 and below 1, such as 99%: no number of spare nodes is always enough; got "{text}"',
            code="failures.bad-spares",
            text=text,
        )
    return None, round(probability, 12)


def _above_zero(text: str, option: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0.0:
        raise InputError(
            f'{option}: expected a time above 0, got "{text}"', code="failures.no-time", option=option, text=text
        )
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedReliability:
    """What is assumed of a cluster of which nothing is said.

    Attributes:
        device_rates: failures that a device causes [1/s]
        write: rate of storage for each device [bytes/s]
        read: the same of reading [bytes/s]
        restart_s: as in `Reliability` [s]
        repair_s: as in `Reliability` [s]
        sources: of each of them, by field
    """

    device_rates: Ends
    write: Ends
    read: Ends
    restart_s: Ends
    repair_s: float
    sources: dict[str, str] = field(hash=False)


@functools.cache
def assumed() -> AssumedReliability:
    """The figures of `failures.toml`: of failures the geometric mean of all clusters, the best and the worst one."""
    table = packaged_toml("trimaran.pricing", "failures.toml")
    clusters, devices = table["failures"]["clusters"], table["failures"]["devices"]
    rates = sorted(one["per_1000_days"] / 1000.0 / DAY_S / devices for one in clusters)
    middle = math.exp(sum(map(math.log, rates)) / len(rates))
    storage = table["storage"]

    def of_device(name: str) -> Ends:
        slow, usual, fast = (parse_rate(text) / storage["devices"] for text in storage[name])
        return fast, usual, slow

    quick, usual, slow = (parse_seconds(text) for text in table["restart"]["seconds"])
    return AssumedReliability(
        device_rates=(rates[0], middle, rates[-1]),
        write=of_device("write"),
        read=of_device("read"),
        restart_s=(quick, usual, slow),
        repair_s=parse_seconds(table["repair"]["seconds"]),
        sources={
            "failures": f"{len(clusters)} published clusters, of 8 devices a node {clusters[0]['per_1000_days']:g} to "
            f"{clusters[-1]['per_1000_days']:g} failures in 1,000 days",
            "storage": storage["source"],
            "restart": table["restart"]["source"],
            "repair": table["repair"]["source"],
        },
    )


# ---------------------------------------------------------------------------------------------------------------------
# A long run on a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a long run has of its cluster.

    Attributes:
        devices: that compute
        node_devices: devices of a node
        checkpoint_bytes: of the state that a run goes on from [bytes]
        to_host_bytes_per_s: copies of a device to its host [bytes/s]; 0: not known, and training waits for the storage
        reliability: as far as the user says it
    """

    devices: int
    node_devices: int
    checkpoint_bytes: float
    to_host_bytes_per_s: float
    reliability: Reliability = ASSUMED

    @property
    def nodes(self) -> int:
        """That compute."""
        return -(-self.devices // self.node_devices)

    def recovery(self, end: int) -> Recovery:
        """Failures, checkpoints and restarts.

        Each device saves an equal part of the state, once, whatever replicas hold.

        Args:
            end: 0: what is good for the run; 1: in the middle; 2: what is bad for it
        """
        said, known = self.reliability, assumed()
        rate = self.devices * known.device_rates[end]
        if said.mtbf_s is not None:
            rate = (self.devices if said.mtbf_of == "device" else self.nodes) / said.mtbf_s
        write, read = self.devices * known.write[end], self.devices * known.read[end]
        if said.checkpoint_bytes_per_s is not None:
            write = read = said.checkpoint_bytes_per_s * (self.nodes if said.checkpoint_rate_of == "node" else 1)
        written = self.checkpoint_bytes / write
        waits = said.waits or not self.to_host_bytes_per_s
        copied = 0.0 if waits else self.checkpoint_bytes / self.devices / self.to_host_bytes_per_s
        start = known.restart_s[end] if said.restart_s is None else said.restart_s
        return Recovery(
            rate=rate,
            restart_s=start + self.checkpoint_bytes / read,
            stall_s=written if waits else copied,
            write_s=0.0 if waits else written,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """A long run with failures.

    Attributes:
        work_s: of the training without failures and checkpoints [s]
        wall_s: expected; infinite where failures leave no progress [s]
        overhead: wall time over work, at 90 %: by the doubt about failures, storage and restarts, and by chance
        recovery: failures, checkpoints and restarts, in the middle
        rates: failures of the run, at both ends [1/s]
        checkpoints: how many are written, but for those that are written again
        checkpoint_s: of the wall time, in waits for them [s]
        restart_s: of it, from failures until training goes on [s]
        lost_s: of it, in work that a failure takes away [s]
        spares: nodes that are held ready and paid; where nobody asked for any, how many would usually be enough
        spare_devices: devices of these nodes
        enough: probability that the run never lacks a node, with them [0..1]
        repair_s: mean time until a failed node is back [s]
        reliability: as far as the user said it
        checkpoint_bytes: of a checkpoint [bytes]
    """

    work_s: float
    wall_s: float
    overhead: Ends
    recovery: Recovery
    rates: tuple[float, float]
    checkpoints: int
    checkpoint_s: float
    restart_s: float
    lost_s: float
    spares: int
    spare_devices: int
    enough: float
    repair_s: float
    reliability: Reliability
    checkpoint_bytes: float

    @property
    def goodput(self) -> float:
        """Useful time of the wall time [0..1]."""
        return self.work_s / self.wall_s

    @property
    def failures(self) -> float:
        """Expected number."""
        return self.recovery.rate * self.wall_s

    @property
    def period_s(self) -> float:
        """Work between two checkpoints [s]."""
        return self.work_s / self.checkpoints


def _held(said: Reliability, nodes: int, rate: float, repair_s: float, seconds: float) -> tuple[int, float]:
    """Spare nodes of a run, and the probability that they are enough."""
    if said.spares is None:
        enough = said.probability or _ENOUGH
        try:
            return spare_nodes(nodes, rate=rate / nodes, repair_s=repair_s, seconds=seconds, probability=enough), enough
        except InfeasibleError:
            if said.holds_spares:
                raise
    spares = said.spares or 0
    if rate <= 0.0 or repair_s <= 0.0 or not math.isfinite(seconds):
        return spares, 1.0
    return spares, survival(spares, load=rate * repair_s, repairs=seconds / repair_s)


def _log(one: float, other: float) -> float:
    """Distance of two times in logarithms; of two that are infinite none."""
    return 0.0 if one == other else abs(math.log(one / other))


def long_run(work_s: float, cluster: Cluster, *, step_s: float = 0.0) -> LongRun:
    """A run with failures on a cluster.

    Args:
        work_s: of the training without failures and checkpoints [s]
        cluster: devices, storage, failures
        step_s: of the training: checkpoints are at least a step apart [s]

    Example:
        30 days of work on 128 nodes, of which each fails once in 200 days, checkpoints of 1 TB at 100 GB/s:

        >>> given = Reliability(mtbf_s=200 * DAY_S, checkpoint_bytes_per_s=100e9, restart_s=300.0, waits=True)
        >>> run = long_run(30 * DAY_S, Cluster(devices=1024, node_devices=8, checkpoint_bytes=1e12,
        ...     to_host_bytes_per_s=25e9, reliability=given))
        >>> round(run.goodput, 3), round(run.failures), round(run.period_s), run.spares
        (0.986, 19, 1636, 5)
    """
    said = cluster.reliability
    cases = []
    for end in (0, 1, 2):
        recovery = cluster.recovery(end)
        every = None if said.every_s is None else max(said.every_s, recovery.write_s - recovery.stall_s)
        count = best_checkpoints(work_s, recovery, every_s=every, least_s=step_s)
        expected_s = expected_seconds(work_s, count, recovery)
        cases.append((recovery, count, expected_s if expected_s < _NO_PROGRESS * work_s else math.inf))
    recovery, count, wall = cases[1]
    active = wall * math.exp(-recovery.rate * recovery.restart_s) if math.isfinite(wall) else math.inf
    waited = count * recovery.stall_s + recovery.write_s
    chance = _NINETY * math.sqrt(variance(work_s, count, recovery)) / wall if math.isfinite(wall) else 0.0
    low, high = (math.hypot(_log(cases[end][2], wall), chance) for end in (0, 2))
    repair = assumed().repair_s if said.repair_s is None else said.repair_s
    spares, enough = _held(said, cluster.nodes, recovery.rate, repair, wall)
    return LongRun(
        work_s=work_s,
        wall_s=wall,
        # Failures never make a run faster.
        overhead=(max(1.0, wall / work_s * math.exp(-low)), wall / work_s, wall / work_s * math.exp(high)),
        recovery=recovery,
        rates=(cases[0][0].rate, cases[2][0].rate),
        checkpoints=count,
        checkpoint_s=waited,
        restart_s=wall - active if math.isfinite(wall) else math.inf,
        lost_s=max(0.0, active - work_s - waited),
        spares=spares,
        spare_devices=spares * cluster.node_devices,
        enough=enough,
        repair_s=repair,
        reliability=said,
        checkpoint_bytes=cluster.checkpoint_bytes,
    )
