"""Where the closed form of decoders and a simulated program both cover a job, each is inside the other's interval."""

import math

import pytest

from trimaran.planner.pins import pins_of_strategy
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import parse_request

JOBS = {"gpt2:124m": 8, "gpt2:355m": 8, "gpt2:774m": 4, "llama3.2:1b": 1}
"""Decoders, with the sequences of a microbatch."""
PLACES = (("dgx-a100", 8), ("dgx-h100", 8), ("dgx1-v100:2", 16))
STRATEGIES = ("dp{n}", "dp{n} zero1", "dp{n} zero3", "dp{h} pp2 1f1b m4")


def cells() -> list[tuple[str, str, int, int, str]]:
    """A job, a machine, its devices, the global batch, a strategy."""
    return [
        (job, cluster, devices, devices * each, words.format(n=devices, h=devices // 2))
        for job, each in JOBS.items()
        for cluster, devices in PLACES
        for words in STRATEGIES
    ]


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "cluster", "devices", "batch", "words"), cells())
def test_each_account_is_inside_the_interval_of_the_other(
    job: str, cluster: str, devices: int, batch: int, words: str
) -> None:
    found = []
    for execution in ("any", "eager"):
        request = parse_request(
            cluster=cluster,
            devices=devices,
            batch=batch,
            software="pytorch:2024",
            precision="fp16" if "v100" in cluster else "bf16",
            execution=execution,
            pins=pins_of_strategy(words),
        )
        chosen = make_plan(job, request).chosen
        found.append((chosen.step_time_s, chosen.interval_s))
    (one_s, one), (other_s, other) = found
    print(f"{job} {cluster} {words}: {one_s:.4g} {one} against {other_s:.4g} {other}: {math.log(other_s / one_s):+.2f}")
    assert one[0] <= other_s <= one[1]
    assert other[0] <= one_s <= other[1]
