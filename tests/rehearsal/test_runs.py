"""From a script to the records of its ranks: which are rehearsed, how often, and together with whom."""

import textwrap
from pathlib import Path

import pytest
from tests.rehearsal.test_launch import ROOT, WORKER

import trimaran
from trimaran.features.rehearse import runs
from trimaran.features.rehearse.runs import Question, Rehearsed, rehearse_ranks
from trimaran.features.rehearse.target import find_target
from trimaran.rehearsal.launch import EndedRank
from trimaran.rehearsal.record import Record

STAGES = """
    import os, pathlib
    with pathlib.Path({log!r}).open("a") as log:
        log.write(os.environ["RANK"] + "\\n")
    rank = int(os.environ["RANK"])
    MADE = [(first, first + 2, first + 4, first + 6) for first in range(2)]
    MADE += [(first, first + 1) for first in (0, 2, 4, 6)]
    CALLS = {calls}
"""
"""Four stages of two replicas."""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of these tests can be imported."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def rehearsed(folder: Path, calls: str, *, world: int = 8, ranks: str = "kinds", **options: Path) -> Rehearsed:
    """A script that makes stages, rehearsed; `begun` has a line for each rank that was started."""
    code = textwrap.dedent(STAGES.format(log=str(folder / "begun"), calls=calls))
    (folder / "train.py").write_text(code)
    question = Question(script=str(folder / "train.py"), target=find_target("dgx-h100", world=world), ranks=ranks)
    return rehearse_ranks(question, worker=WORKER, **options)


def started(folder: Path) -> list[int]:
    """Ranks whose scripts have run, once for each time."""
    return sorted(map(int, (folder / "begun").read_text().split()))


def test_rank_0_and_the_last_rank_tell_which_others_are_rehearsed_and_run_once(tmp_path: Path) -> None:
    """Messages in the groups of stages: every stage; each has both of its replicas, as these are few."""
    found = rehearsed(tmp_path, "[('send', rank % 2)]")
    assert [record.rank for record in found.records] == list(range(8))
    assert started(tmp_path) == list(range(8))
    assert found.representatives == {rank: rank for rank in range(8)}


def test_without_stages_the_ends_of_groups_stand_for_the_others(tmp_path: Path) -> None:
    found = rehearsed(tmp_path, "[]", world=16)
    assert [record.rank for record in found.records] == [0, 1, 6, 15]
    assert started(tmp_path) == [0, 1, 6, 15]
    assert set(found.representatives.values()) == {0, 1, 6, 15}


def test_ranks_that_exchange_objects_are_run_anew_at_once(tmp_path: Path) -> None:
    """Rank 0 and the last one were looked at alone, and run again with the others: they wait for each other."""
    found = rehearsed(tmp_path, "[('send_object', rank % 2)]")
    assert started(tmp_path) == sorted([*range(8), 0, 7])
    assert all(run.request.together == tuple(range(8)) for run in found.runs)


def test_neighbours_that_are_not_rehearsed_are_stood_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.rehearsal.kinds.MOST_RANKS", 4)
    found = rehearsed(tmp_path, "[('send_object', rank % 2)]")
    asked = {run.request.rank: run.request.stand_ins for run in found.runs}
    assert sorted(asked) == [0, 1, 2, 4, 6, 7]
    assert asked[7] == {3: (2, 6), 5: (4, 6)}
    assert asked[4] == {}


def test_named_ranks_are_rehearsed_and_no_others(tmp_path: Path) -> None:
    """They exchange objects with their neighbours 1 and 4, which are not rehearsed: nobody waits, nobody runs twice."""
    found = rehearsed(tmp_path, "[('all_gather_object', 2 + rank // 2)]", ranks="0,2,5")
    assert [record.rank for record in found.records] == [0, 2, 5]
    assert started(tmp_path) == [0, 2, 5]
    assert set(found.representatives.values()) == {0, 2, 5}


def test_logs_are_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    rehearsed(tmp_path, "print('I am', rank) or []", ranks="0,3", logs=tmp_path / "logs")
    assert (tmp_path / "logs" / "rank3.log").read_text() == "I am 3\n"
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank0.log", "rank3.log"]


def test_the_limit_goes_to_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def run_ranks(requests: list[runs.RankRequest], **_: object) -> list[EndedRank]:
        asked.extend(request.most_seconds for request in requests)
        raise InterruptedError

    monkeypatch.setattr(runs, "run_ranks", run_ranks)
    (tmp_path / "train.py").touch()
    target = find_target("dgx-h100", world=8)
    with pytest.raises(InterruptedError):
        rehearse_ranks(Question(script=str(tmp_path / "train.py"), target=target, limit_s=7.0))
    assert asked == [7.0, 7.0]


BEST = """
    import os
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    best = Path(__file__).with_name("best.pt")
    print("resumed" if best.exists() else "begun")
    model = DistributedDataParallel(torch.nn.Linear(64, 10).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), best)
    dist.barrier()
    if best.exists():
        model.load_state_dict(torch.load(best, map_location="cuda"))
        correct = torch.zeros(1, device="cuda")
        dist.all_reduce(correct)
        print("evaluated the best")
    dist.destroy_process_group()
"""
"""Rank 0 keeps the best weights in a file, and all ranks load it for the last evaluation; they resume where it is."""


def test_a_file_that_rank_0_saves_is_found_by_the_others_after_the_barrier_and_not_before(tmp_path: Path) -> None:
    """Alone, ranks would not find it, leave out a collective, and be said to disagree."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BEST))
    answer = trimaran.rehearse(script, world=8, cluster="dgx-h100", ranks="0,3")
    assert answer.verdict == "fits", answer
    assert not (tmp_path / "best.pt").exists()


RENAMED = """
    import os
    import shutil
    import threading
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    apart = dist.new_group(backend="gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 10).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    get_state_dict(model, optimizer)  # which steps once, so that there is a state
    if dist.get_rank() == 0:
        shutil.rmtree("kept")
        os.makedirs("unfinished")
        torch.save(model.state_dict(), "unfinished/model.pt")
        os.replace("unfinished", "kept")
        os.remove("old.pt")
        with open("open.pt", "wb") as file:
            torch.save(optimizer.state_dict(), file)
    dist.barrier()
    model.load_state_dict(torch.load("kept/model.pt", map_location="cuda"))
    torch.load("open.pt")
    assert not os.path.exists("old.pt") and not os.path.exists("unfinished/model.pt")
    for step in range(3):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with open("steps.txt", "a") as file:
            file.write(f"{step}")
        logs = threading.Thread(target=dist.all_reduce, args=(torch.ones(4),), kwargs={"group": apart})
        logs.start()
        if dist.get_rank() == 0:
            logs.join()
    dist.destroy_process_group()
"""
"""Saves as checkpoints are put in place at once, over and next to earlier ones; a thread that sums what is logged."""


def test_checkpoints_that_were_there_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(RENAMED))
    (tmp_path / "kept").mkdir()
    before = {tmp_path / name: name.encode() for name in ("kept/model.pt", "open.pt", "old.pt")}
    for path, content in before.items():
        path.write_bytes(content)
    answer = trimaran.rehearse(script, world=8, cluster="dgx-h100", ranks="0,7")
    assert answer.verdict == "fits", answer
    assert (tmp_path / "steps.txt").read_text().endswith("012")  # of both runs of rank 0
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "open.pt", "old.pt", "train.py", "steps.txt"}


@pytest.mark.parametrize(
    ("saved", "sought", "expected"),
    [({"a": 3}, {"a": 4}, {"a": 3}), ({"a": 3}, {"a": 3}, {}), ({"a": 3}, {"b": 9}, {}), ({}, {"a": 1}, {})],
)
def test_a_file_is_shared_where_a_call_of_all_ranks_lies_between(
    saved: dict[str, int], sought: dict[str, int], expected: dict[str, int]
) -> None:
    records = [
        Record(rank=rank, world=2, per_node=2, device="h100", memory_bytes=0, script=[], saved=kept, sought=missed)
        for rank, (kept, missed) in enumerate([(saved, {}), ({}, sought)])
    ]
    assert runs.shared_files(records) == expected
