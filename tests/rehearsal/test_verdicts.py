"""What is said of scripts that would not train as their authors mean, in a sentence with the line."""

import textwrap
from pathlib import Path

import pytest

import trimaran
from trimaran.report.rehearsal import Rehearsal

TRAINS = """
import os, sys, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["RANK"])
"""


def rehearsed(folder: Path, script: str, **asked: object) -> Rehearsal:
    """A script that is written into a folder, rehearsed."""
    (folder / "train.py").write_text(TRAINS + textwrap.dedent(script))
    return trimaran.rehearse(folder / "train.py", **{"world": 1, "cluster": "dgx-h100"} | asked)  # type: ignore[arg-type]


def line_of(text: str, folder: Path) -> str:
    """Where a text stands in the script, as it is told."""
    lines = (folder / "train.py").read_text().splitlines()
    return f"train.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.parametrize(
    ("asks", "hints", "verdict"),
    [
        ("assert (tokens != 8).sum().item() == 7", {}, "failed"),
        ("assert (tokens != 8).sum().item() == 7", {"count": 7.0}, "fits"),
        ("[][tokens.max().item()]", {}, "failed"),
        ("sys.exit(0) if tokens.max().item() else None", {}, "not trained"),
        ("1 // (tokens != 8).sum().item()", {}, "fits"),
    ],
)
def test_a_verdict_that_follows_from_an_invented_value_says_so(
    asks: str, hints: dict[str, float], verdict: str, tmp_path: Path
) -> None:
    script = f"""
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tokens = torch.randint(0, 9, (64, 512), device="cuda")
        {asks}
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    """
    found = rehearsed(tmp_path, script, hints=hints)
    assert found.verdict == verdict, str(found)
    if verdict != "fits":
        assert "after an invented value: count" in found.headline
        assert line_of("tokens.max()" if "max" in asks else "tokens != 8", tmp_path) in found.headline


CHOSEN = {
    "forgotten": ('model = DDP(nn.Linear(8, 8).cuda())', "cuda()"),
    "the same for all": ('torch.cuda.set_device(0); model = DDP(nn.Linear(8, 8).to("cuda"))', 'to("cuda")'),
    "a name of all": ('model = DDP(nn.Linear(8, 8, device="cuda:1"))', 'device="cuda:1"'),
    "a mesh that is late": ('torch.cuda.get_device_name(); model = fully_shard(nn.Linear(8, 8))', "fully_shard("),
    "objects": (
        'dist.all_gather_object([None] * 8, rank); model = DDP(nn.Linear(8, 8).to(local))', "all_gather_object"
    ),
    "by number": ('model = DDP(nn.Linear(8, 8).to(local))', ""),
    "set": ('torch.cuda.set_device(local); model = DDP(nn.Linear(8, 8).cuda())', ""),
    "by a mesh": ('model = fully_shard(nn.Linear(8, 8))', ""),
    "by what is visible": (
        'os.environ["CUDA_VISIBLE_DEVICES"] = str(local); model = DDP(nn.Linear(8, 8).cuda())', ""
    ),
}  # fmt: skip
"""How a script chooses its device, and what stands in the line that is told; "": each rank has its own."""


@pytest.mark.parametrize(("way", "world"), [*((way, 2) for way in CHOSEN), ("forgotten", 16), ("set", 16)])
def test_ranks_of_a_node_on_one_device_are_told(way: str, world: int, tmp_path: Path) -> None:
    chosen, at = CHOSEN[way]
    script = f"""
        from torch.distributed.fsdp import fully_shard
        local = int(os.environ["LOCAL_RANK"])
        dist.init_process_group("nccl")
        {chosen}
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        device = next(model.parameters()).device
        for _ in range(2):
            model(torch.randn(4, 8, device=device)).sum().backward()
            optimizer.step()
    """
    found = rehearsed(tmp_path, script, world=world)
    assert found.verdict == ("disagree" if at else "fits"), str(found)
    if at:
        assert "would share one device" in found.headline
        assert line_of(at, tmp_path) in found.headline


KEPT = {
    "losses": ("kept.append(loss)", True, "loss = model"),
    "a sum": ("total = total + loss", True, "total = total"),
    "outputs": ("kept.append(model[0](data).detach())", True, "kept.append("),
    "numbers": ("kept.append(loss.item())", False, ""),
    "losses without their graph": ("kept.append(loss.detach())", False, ""),
    "the last few": ("kept = [*kept[-1:], loss]", False, ""),
    "a cache of four": ("cache.setdefault(step % 4, torch.ones(2**26, device='cuda'))", False, ""),
    "another state later": ("step == 1 and cache.update(mean=[one * 1.0 for one in model.parameters()])", False, ""),
}
"""What a step keeps, whether memory grows by it, and the line that is told."""


@pytest.mark.parametrize("what", KEPT)
def test_memory_that_grows_is_told_with_its_line_and_the_step_that_ends_it(what: str, tmp_path: Path) -> None:
    keeps, grows, at = KEPT[what]
    script = f"""
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        kept, cache, total = [], dict(), 0.0
        for step in range(9):
            data = torch.randn(65536, 1024, device="cuda")
            loss = model(data).mean()
            loss.backward(retain_graph={grows})
            optimizer.step()
            optimizer.zero_grad()
            {keeps}
    """
    found = rehearsed(tmp_path, script)
    assert found.verdict == ("out of memory" if grows else "fits"), str(found)
    if grows:
        assert "grows by" in found.headline
        assert "full in step" in found.headline
        assert line_of(at, tmp_path) in found.headline
        assert not found.remedies


PREPARES = """
    import json, pathlib, time
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    folder = pathlib.Path(__file__).parent
    {prepares}
    model = DDP(nn.Linear({width}, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    with open(folder / f"log-{{rank}}.txt", "w") as log:
        log.write("done")
    (folder / "all.txt").write_text(str(rank))
    assert (folder / "all.txt").read_text() == str(rank) and (folder / f"log-{{rank}}.txt").exists()
"""
ONE_PREPARES = {
    "a barrier": """if rank == 0:
        time.sleep(2); (folder / "made.json").write_text("8")
    dist.barrier()""",
    "the first of each node": """if os.environ["LOCAL_RANK"] != "0":
        dist.barrier()
    if not (folder / "made.json").exists():
        time.sleep(1); assert rank == 0; json.dump(8, open(folder / "made.json", "x"))
    if os.environ["LOCAL_RANK"] == "0":
        dist.barrier()""",
    "an object of rank 0": """if rank == 0:
        time.sleep(2); (folder / "made.json").write_text("8")
    dist.broadcast_object_list([None])""",
}


@pytest.mark.parametrize("way", ONE_PREPARES)
def test_what_rank_0_prepares_is_read_by_the_others_and_only_rank_0_writes(way: str, tmp_path: Path) -> None:
    script = PREPARES.format(prepares=ONE_PREPARES[way], width='json.loads((folder / "made.json").read_text())')
    (tmp_path / "before.txt").write_text("kept")
    found = rehearsed(tmp_path, script, world=8)
    assert found.verdict == "fits", str(found)
    written = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "train.py"}
    assert written == {"before.txt": "kept", "made.json": "8", "log-0.txt": "done", "all.txt": "0"}


@pytest.mark.parametrize(
    ("compiles", "tokens", "verdict"),
    [("model = torch.compile(model)", 2**16, "fits"), ("model = torch.compile(model)", 2**22, "not sure"),
     ("model[1].compile()", 2**22, "not sure"), ("", 2**22, "out of memory")],
)  # fmt: skip
def test_what_fits_without_the_compiler_fits_and_what_does_not_is_not_sure(
    compiles: str, tokens: int, verdict: str, tmp_path: Path
) -> None:
    script = f"""
        model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.LayerNorm(1024), nn.ReLU(), nn.Linear(1024, 8)).cuda()
        {compiles}
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.randn({tokens}, 64, device="cuda")).sum().backward()
            optimizer.step()
    """
    found = rehearsed(tmp_path, script)
    assert found.verdict == verdict, str(found)
    assert ("with it about" in str(found)) is (verdict == "not sure")


ENDS = {
    "an exit that follows an error": ("""
        try:
            raise ValueError("no such config") from KeyError("model")
        except ValueError:
            sys.exit(1)
        """, "ValueError: no such config; its cause: KeyError: 'model'", "no such config"),
    "an exit of an exit": ("""
        try:
            raise RuntimeError("first")
        except RuntimeError:
            try:
                sys.exit(2)
            except SystemExit:
                sys.exit(3)
        """, "RuntimeError: first", '"first"'),
    "an exit at once": ("os._exit(7)", "left with status 7", "os._exit(7)"),
    "an assertion without a word": (
        "assert rank == 7", "AssertionError, which says nothing: assert rank == 7", "rank == 7"
    ),
    "a worker of a loader": ("""
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): raise ValueError(f"sample broken\\nread twice\\n")
        list(torch.utils.data.DataLoader(Data(), num_workers=1))
        """, "ValueError: sample broken (Caught ValueError in DataLoader worker process 0)", "list("),
    "a process of a pool": ("""
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(1) as pool:
            pool.submit(int, "seven").result()
        """, "ValueError: invalid literal for int() with base 10: 'seven'", ".result()"),
    "a layer of flash_attn": (
        "from flash_attn.ops.rms_norm import rms_norm", "flash_attn.ops of flash_attn 2.8.3 is not rehearsed",
        "rms_norm",
    ),
    "a name of flash_attn": (
        "from flash_attn import flash_attn_func, flash_attn_unpadded_func",
        "flash_attn.flash_attn_unpadded_func of flash_attn 2.8.3 is not rehearsed", "flash_attn_unpadded_func",
    ),
    "a function of flash_attn that generates": (
        "from flash_attn import flash_attn_with_kvcache\nflash_attn_with_kvcache(1)",
        "flash_attn.flash_attn_with_kvcache of flash_attn 2.8.3 is not rehearsed", "flash_attn_with_kvcache(1)",
    ),
}  # fmt: skip
"""How scripts end, what is said of it, and what is in the line that is told."""


@pytest.mark.parametrize("way", ENDS)
def test_how_a_script_ends_is_told_with_its_cause_and_line(way: str, tmp_path: Path) -> None:
    script, says, at = ENDS[way]
    found = rehearsed(tmp_path, textwrap.dedent(script).strip())
    assert found.verdict == "failed"
    assert says in found.headline
    assert line_of(at, tmp_path) in found.headline


def test_nvidia_smi_answers_for_the_machine_that_is_rehearsed(tmp_path: Path) -> None:
    script = """
        import subprocess
        def asked(*words): return subprocess.check_output(["nvidia-smi", *words], text=True)
        assert asked("-L").count("UUID") == 8 and "H100" in asked()
        assert asked("--query-gpu=memory.used", "--format=csv,noheader,nounits").split() == ["0"] * 8
        sys.exit(3)
    """
    found = rehearsed(tmp_path, script, world=16)
    assert "left with status 3" in found.headline, str(found)


@pytest.mark.parametrize(
    ("sets", "cluster", "peak"),
    [("torch.backends.cuda.matmul.allow_tf32 = True", "dgx-h100", "tf32"), ("", "dgx-h100", "fp32"),
     ("torch.set_float32_matmul_precision('high')", "dgx1", "fp32"),
     ("torch.set_float32_matmul_precision('high')", "dgx-a100", "tf32")],
)  # fmt: skip
def test_a_step_is_compared_with_the_peak_of_the_units_that_it_takes(
    sets: str, cluster: str, peak: str, tmp_path: Path
) -> None:
    script = f"""
        {sets}
        model = nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.randn(64, 1024, device="cuda")).sum().backward()
            optimizer.step()
    """
    found = rehearsed(tmp_path, script, cluster=cluster)
    assert found.step is not None
    assert found.step.peak == peak


ONE_STEP = {
    "DDP": ("model = DDP(model)", "", {"all_reduce": 288}),
    "DDP after what all tell each other": (
        "dist.all_reduce(torch.ones(64, device='cuda')); model = DDP(model)",
        "dist.all_reduce(torch.ones(2, device='cuda'))",
        {"all_reduce": 288 + 8},
    ),
    "shards": ("fully_shard(model)", "", {"all_gather": 288, "reduce_scatter": 288}),
}


@pytest.mark.parametrize("way", ONE_STEP)
def test_what_an_only_step_exchanges_begins_with_its_forward(way: str, tmp_path: Path) -> None:
    before, after, exchanged = ONE_STEP[way]
    script = f"""
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("nccl"); torch.cuda.set_device(rank)
        model = nn.Linear(8, 8).cuda()
        {before}
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        {after}
        optimizer.step()
    """
    found = rehearsed(tmp_path, script, world=8)
    assert found.verdict == "fits", str(found)
    assert {one.operation: one.nbytes for one in found.collectives} == exchanged


@pytest.mark.parametrize(
    ("asks", "is_used"),
    [
        ("torch.accelerator.device_index(rank)", False),
        ("torch.cuda.device(rank)", False),
        ("torch.cuda.device(torch.device('cuda', rank))", False),
        ("torch.cuda.device_of(torch.ones(2))", False),
        ("torch.cuda.current_device()", True),
        ("torch.ones(2, device='cuda:0')", True),
    ],
)
def test_a_device_that_is_only_named_leaves_it_to_the_mesh_to_choose_one(
    asks: str, is_used: bool, tmp_path: Path
) -> None:
    script = f"""
        from torch.distributed.device_mesh import init_device_mesh
        {asks}
        assert torch.cuda.is_initialized() == {is_used}
        init_device_mesh("cuda", (8,))
        assert torch.cuda.current_device() == ({not is_used}) * rank
        model = nn.Linear(8, 8).cuda()
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        dist.all_reduce(model.weight.grad), dist.all_reduce(model.bias.grad)
        torch.optim.SGD(model.parameters(), 0.1).step()
    """
    found = rehearsed(tmp_path, script, world=8)
    assert found.verdict == ("disagree" if is_used else "fits"), str(found)
