"""The page of a rehearsal: verdict first, eighty columns, whatever a script calls its files and groups."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.remedies import MemoryHelp
from trimaran.features.rehearse.ask import ask
from trimaran.program.json_files import to_plain
from trimaran.report.rehearsal import (
    EXIT_CODES,
    InventedValue,
    Rehearsal,
    RehearsedCollectives,
    RehearsedRank,
    RehearsedStep,
    Side,
    Trouble,
    Verdict,
    asked_again,
    next_command,
)

GIB = 2**30


def ranks(count: int, *, place: str = "pp {} of 64, dp 0 of 2,048") -> list[RehearsedRank]:
    """Ranks of which each takes a little more than the one before."""
    purposes = ("parameter", "gradient", "optimizer", "activation", "temporary", "communication", "other")
    return [
        RehearsedRank(
            rank=1000 * number,
            place=place.replace("{}", str(number)),
            stands_for=2048,
            ended="stopped after 3 steps, as asked",
            status=0,
            steps=3,
            allocated_bytes=(100 + number) * GIB,
            reserved_bytes=(120 + number) * GIB,
            room_bytes=79 * GIB,
            parts_bytes=dict.fromkeys(purposes, 20 * GIB),
            kept_bytes=dict.fromkeys(purposes[:3], 20 * GIB),
            peak_line="train.py:3",
            host_s=20.0,
            host_bytes=GIB // 2,
        )
        for number in range(count)
    ]


def made(verdict: Verdict = "fits", **changes: object) -> Rehearsal:
    """A rehearsal with something of everything."""
    rehearsal = Rehearsal(
        verdict=verdict,
        headline="train.py runs out of memory on 131,072 × NVIDIA H100 SXM5 80 GB: rank 0 has no room",
        script=["train.py", "--name", "a b"],
        world=131_072,
        cluster="dgx-h100:16384",
        device="NVIDIA H100 SXM5 80 GB",
        per_node=8,
        memory_bytes=80 * GIB,
        ranks=ranks(20),
        troubles=[
            Trouble(
                verdict=verdict,
                text="rank 0 has no room",
                sides=[Side(rank=0, text="all_reduce", lines=["train.py:3 in main", "train.py:9"])],
                help=["call `wait()`"],
            )
        ],
        remedies=[],
        agreement="Agreement: 3 calls of 2 groups and 4 ranks were compared, and all agree",
        collectives=[
            RehearsedCollectives(rank=0, operation="all_to_all", group="dp", ranks=131_072, count=10**6, nbytes=10**15)
        ]
        * 14,
        step=RehearsedStep(
            seconds=100.0,
            interval_s=(80.0, 130.0),
            parts_s={"compute": 60.0, "waiting for other ranks (bubble)": 40.0, "slowest rank": 0.01},
            mfu=0.4,
            peak="bf16",
            rank=0,
            notes=["a note " * 20],
        ),
        invented=[InventedValue(what="loss", asked="item", value="2.0", line="train.py:7", count=10**6)] * 14,
        notes=["torch.compile: rehearsed without it"],
        printed=["x" * 500],
        took_s=300.0,
    )
    return replace(rehearsal, **changes)  # type: ignore[arg-type]  # of a test's own choosing


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_the_verdict_comes_first_and_the_next_command_last(verdict: Verdict) -> None:
    page = str(made(verdict)).splitlines()
    assert page[0].startswith("train.py runs out of memory on 131,072 ×")
    assert "Next: " in "\n".join(page[-4:])
    assert verdict in EXIT_CODES


def test_only_a_script_that_fits_ends_with_status_zero() -> None:
    assert [verdict for verdict, code in EXIT_CODES.items() if code == 0] == ["fits"]
    assert EXIT_CODES.keys() == set(get_args(Verdict))


def test_the_largest_figures_fit_eighty_columns_and_none_is_left_out() -> None:
    page = str(made())
    assert max(map(len, page.splitlines())) <= 80
    for shown in ("139.0", "119.0", "2,048", "1,000,000", "60.0 %", "40.0 %", "909.5 TiB", "…"):
        assert shown in page
    # The share of a part below 0.05 % of the step says nothing.
    assert "slowest rank" not in page
    assert "8 rows with less" in " ".join(page.split())


def test_a_sentence_that_the_headline_has_is_not_said_again() -> None:
    told, other = made(), made(headline="train.py fails")
    assert " ".join(str(told).split()).count("rank 0 has no room") == 1
    assert " ".join(str(other).split()).count("rank 0 has no room") == 1


def test_ranks_with_the_same_figures_are_one_row_that_stands_for_all_of_them() -> None:
    alike = [replace(one, allocated_bytes=GIB, reserved_bytes=2 * GIB) for one in ranks(2)]
    (row,) = [line for line in str(made(ranks=alike)).splitlines() if "1.00" in line and "2.00" in line]
    assert row.startswith("0, 1000")
    assert "4,096" in row
    # They stand at different stages and at the same place otherwise.
    assert "pp" not in row
    assert "dp 0" in row


@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), min_size=1, max_size=200))
def test_names_of_a_script_are_shown_as_they_are_and_fit(text: str) -> None:
    """Brackets are no markup, control characters no commands."""
    found = made(
        headline=f"{text} fits",
        script=[text],
        ranks=ranks(1, place=text),
        troubles=[Trouble(verdict="fits", text=text, sides=[Side(rank=0, text=text, lines=[text, text])], help=[text])],
        collectives=[RehearsedCollectives(rank=0, operation=text, group=text, ranks=1, count=1, nbytes=1)],
        invented=[InventedValue(what=text, asked=text, value=text, line=text, count=1)],
        notes=[text],
        printed=[text],
    )
    page = str(found)
    assert "\x1b" not in page
    json.dumps(to_plain(found))


def test_brackets_are_shown() -> None:
    group = RehearsedCollectives(rank=0, operation="send", group="[bold]pp[/]", ranks=2, count=1, nbytes=1)
    assert "[bold]pp[/]" in str(made(collectives=[group], notes=["[/red]"], printed=["[/]"]))


def test_the_next_command_repeats_the_script_as_it_was_given() -> None:
    command = next_command(made())
    assert shlex.split(command)[-4:] == ["--", "train.py", "--name", "a b"]
    module = next_command(made(script=["-m", "package.train", "--lr", "1"]))
    assert module.endswith("trace.json -m package.train --lr 1")


def test_the_next_command_asks_of_the_same_devices_and_values(tmp_path: Path) -> None:
    """Without --memory it told of a device with more."""
    script = tmp_path / "train.py"
    script.write_text("")
    asked = ask(
        script, world=4, cluster="dgx-a100", memory="22GiB", per_node=2, hints={"loss": 2.5}, alloc_conf="", steps=5
    )
    assert find_rest(asked_again(made(options=asked.options))) == (
        "--memory 22GiB --per-node 2 --steps 5 --alloc-conf '' --hint loss=2.5"
    )
    tight = replace(ranks(1)[0], reserved_bytes=75 * GIB)
    again = next_command(made("not sure", ranks=[tight], options=asked.options))
    assert find_rest(again) == (
        "--memory 22GiB --per-node 2 --steps 5 --hint loss=2.5 --alloc-conf expandable_segments:True"
    )
    assert ask(script, world=4, ranks="kinds", limit="10min").options == ()


def find_rest(command: str) -> str:
    """Options behind world and cluster."""
    return command.partition("dgx-h100:16384 ")[2].partition(" -- train.py")[0]


def test_after_a_lack_of_memory_the_first_remedy_that_is_enough_comes_next() -> None:
    helps = [
        MemoryHelp(rank=0, name=name, action=f"{name}.", saves_bytes=GIB, reserved_bytes=GIB, fits=fits, basis="",
                   assumption="")
        for name, fits in (("Halve the batch", False), ("Checkpoint the layers", True))
    ]  # fmt: skip
    assert next_command(made("out of memory", remedies=helps)).startswith(
        "Checkpoint the layers; then trimaran rehearse"
    )
    assert next_command(made("out of memory", remedies=helps[:1])).startswith("no remedy is enough alone")
    page = str(made("out of memory", remedies=helps))
    assert "What would help rank 0" in page
    assert "yes" in page


def test_each_remedy_has_the_step_then_and_a_host_without_room_is_told() -> None:
    about: dict[str, Any] = {"rank": 0, "basis": "", "assumption": "", "saves_bytes": GIB, "reserved_bytes": GIB}
    helps = [
        MemoryHelp(name="recompute", action="Recompute the layers.", fits=True, step_time_s=2.5, **about),
        MemoryHelp(
            name="copies", action="Copy to the host.", fits=False, step_time_s=7.5, refused="900 GiB, not 800", **about
        ),
        MemoryHelp(name="shards", action="Shard the state.", fits=False, **about),
    ]
    found = made("out of memory", remedies=helps)
    page = str(found)
    assert max(map(len, page.splitlines())) <= 80
    rows = {words[0]: words for line in page.splitlines() if len(words := re.split(r"\s{2,}", line.strip())) == 5}
    assert rows["Recompute the layers."][1:] == ["1.0 GiB", "1.0 GiB", "2.50 s", "yes"]
    assert rows["Copy to the host."][3:] == ["7.50 s", "no: host"]
    assert rows["Shard the state."][3:] == ["–", "no"]
    assert "copies: 900 GiB, not 800" in page
    assert next_command(found).startswith("Recompute the layers; then trimaran rehearse")
    assert [one["step_time_s"] for one in json.loads(json.dumps(to_plain(found)))["remedies"]] == [
        2.5,
        7.5,
        None,
    ]


def test_where_memory_is_tight_the_allocator_is_worth_a_look_and_else_it_is_not() -> None:
    """A script that compiles is not sure to fit, however much room there is."""
    (one,) = ranks(1)
    tight, wide = replace(one, reserved_bytes=75 * GIB), replace(one, reserved_bytes=GIB)
    assert "expandable_segments" in next_command(made("not sure", ranks=[tight]))
    assert "expandable_segments" not in next_command(made("not sure", ranks=[wide]))


def test_the_document_has_every_field() -> None:
    document = json.loads(json.dumps(to_plain(made())))
    assert document["verdict"] == "fits"
    assert document["fits"] is True
    assert document["peak_bytes"] == 139 * GIB
    assert len(document["ranks"]) == 20
    assert len(document["invented"]) == 14
    assert document["step"]["parts_s"]["compute"] == 60.0
