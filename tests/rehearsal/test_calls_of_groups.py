"""Functions of torch.distributed take what torch's take, and refuse what NCCL's process group refuses."""

import inspect
import json
import warnings

import pytest
import torch.distributed as dist
from tests.rehearsal.rehearsing import rehearse_rank

pytestmark = pytest.mark.usefixtures("_forked_rehearsals")

SCRIPT = """
import datetime, json
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional

torch.cuda.set_device(0)
dist.init_process_group(backend="nccl", init_method="env://", timeout=datetime.timedelta(seconds=60), world_size=-1,
                        rank=-1, store=None, group_name="", pg_options=None, device_id=torch.device("cuda", 0))
world, device = dist.group.WORLD, torch.device("cuda", 0)


def row(count=4):
    return torch.ones(count, device=device)


def values(name):
    "For every parameter of a function, by its name."
    lists = name in ("all_to_all", "reduce_scatter", "all_gather", "all_gather_coalesced", "all_reduce_coalesced")
    whole = {"all_gather_into_tensor": ("output_tensor", 8), "all_gather_single": ("output_tensor", 8),
             "reduce_scatter_tensor": ("input", 8), "reduce_scatter_single": ("input", 8)}.get(name)
    peers = ("send", "isend", "recv", "irecv", "send_object_list", "recv_object_list")
    given = {
        "tensor": row(), "input": row(), "output": row(), "input_tensor": row(), "output_tensor": row(),
        "tensors": [row(), row()], "tensor_list": [row(), row()], "gather_list": [row(), row()],
        "scatter_list": [row(), row()], "input_list": [row(), row()], "input_tensor_list": [row(), row()],
        "output_tensor_list": [row(), row()], "output_tensor_lists": [[row(), row()], [row(), row()]],
        "object_list": [1, 2], "obj": 1, "object_gather_list": [None, None], "scatter_object_output_list": [None],
        "scatter_object_input_list": [1, 2], "op": dist.ReduceOp.SUM, "async_op": False, "group": world, "pg": world,
        "process_group": world, "device_ids": None, "timeout": datetime.timedelta(seconds=60), "backend": "nccl",
        "wait_all_ranks": False, "ranks": [0, 1], "pg_options": None, "use_local_synchronization": False,
        "group_desc": "pair", "device_id": None, "sort_ranks": True, "parent_pg": world, "split_ranks": [[0, 1]],
        "ranks_per_subgroup_list": [[0, 1]], "group_size": 2, "device_type": "cuda", "mesh_shape": (2,),
        "mesh_dim_names": ("dp",), "backend_override": None, "p2p_op_list": [dist.P2POp(dist.isend, row(), 1)],
        "global_rank": 0, "group_rank": 0, "fallback_rank": 0, "input_split_sizes": None, "output_split_sizes": None,
        "tag": 0, "device": device, "use_batch": False, "split_share": False, "ranks_to_exclude": [],
    }
    if name in ("send", "isend", "send_object_list"):
        given |= {"dst": 1, "group_dst": None}
    elif name in ("recv", "irecv", "recv_object_list"):
        given |= {"src": 1, "group_src": None}
    else:
        given |= {"dst": 0, "src": 0, "group_src": None, "group_dst": None}
    if whole is not None:
        given[whole[0]] = row(whole[1])
    return given


def by_keyword():
    wrong = []
    for name, parameters in json.loads(SIGNATURES).items():
        given = values(name)
        named = {one: given[one] for one, required in parameters.items() if one in given}
        missing = [one for one, required in parameters.items() if required and one not in given]
        try:
            if missing:
                raise TypeError(f"the test has no {missing}")
            getattr(dist, name)(**named)
        except NotImplementedError as error:
            if name not in str(error) or "not rehearsed" not in str(error):
                wrong.append((name, str(error)[:200]))
        except Exception as error:
            wrong.append((name, type(error).__name__, str(error)[:200]))
    return wrong


def group_of_one_place():
    "Arguments by place, too: use_local_synchronization is the fifth."
    made = dist.new_group([0], None, "nccl", None, True, "alone")
    return [] if made.group_desc == "alone" and dist.get_world_size(made) == 1 else [made.group_desc]


def strided(count=8):
    return torch.ones(count, 2, device=device).t()[0]


def refusals():
    one, two, pair = row(), row(8), [row(), row()]
    refused = {
        "all_reduce": lambda: dist.all_reduce(strided()),
        "broadcast": lambda: dist.broadcast(strided(), 0),
        "reduce": lambda: dist.reduce(strided(), 0),
        "all_gather": lambda: dist.all_gather(pair, strided(4)),
        "all_gather_into_tensor from": lambda: dist.all_gather_into_tensor(two, strided(4)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(strided(), one),
        "reduce_scatter": lambda: dist.reduce_scatter(strided(4), pair),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(strided(4), two),
        "reduce_scatter_tensor from": lambda: dist.reduce_scatter_tensor(one, strided()),
        "all_to_all_single": lambda: dist.all_to_all_single(strided(), two),
        "all_to_all_single from": lambda: dist.all_to_all_single(two, strided()),
    }
    taken = {
        "all_gather into": lambda: dist.all_gather([strided(4), strided(4)], one),
        "reduce_scatter from": lambda: dist.reduce_scatter(one, [strided(4), strided(4)]),
        "all_to_all": lambda: dist.all_to_all([strided(4), strided(4)], pair),
        "send": lambda: dist.send(strided(), 1),
        "channels last": lambda: dist.all_reduce(row(128).view(2, 4, 4, 4).to(memory_format=torch.channels_last)),
        "transposed and in one piece": lambda: dist.all_reduce(row(16).view(4, 4).t().contiguous()),
    }
    wrong = []
    for name, call in (refused | taken).items():
        try:
            call()
            said = ""
        except ValueError as error:
            said = str(error)
        if ("Tensors must be contiguous" in said) != (name in refused):
            wrong.append((name, said))
    return wrong


for one in (by_keyword, group_of_one_place, refusals):
    try:
        print(one.__name__, "wrong:", one(), flush=True)
    except Exception as error:
        print(one.__name__, "fails:", type(error).__name__, error, flush=True)
"""

LEFT_OUT = {
    "init_process_group": "called as the script begins, with every parameter",
    "destroy_process_group": "ends the groups of the others",
    "breakpoint": "waits for a person",
    "recv_object_list": "waits for a rank that is not there",
    "supports_complex": "of reductions, without a group",
    "rendezvous": "gives an iterator of the store",
    "register_rendezvous_handler": "its handler is called by no one",
    "record_comm": "of objects below Python",
    "monitored_barrier": "of gloo alone, as torch says",
    "shrink_group": "of NCCL's own process group",
}


def signatures() -> dict[str, dict[str, bool]]:
    """Parameters of all public functions of torch.distributed, and whether they are required."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for name, one in vars(dist).items():
            if inspect.isfunction(one) and not name.startswith("_") and name not in LEFT_OUT:
                parameters = inspect.signature(one).parameters.values()
                kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
                found[name] = {each.name: each.default is each.empty for each in parameters if each.kind not in kinds}
    return found


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("calls")
    (folder / "train.py").write_text(f"SIGNATURES = {json.dumps(signatures())!r}\n{SCRIPT}")
    rehearse_rank(folder / "train.py", folder=folder, world=2)
    return (folder / "output").read_text()


@pytest.mark.parametrize("name", ["by_keyword", "group_of_one_place", "refusals"])
def test_calls_are_answered_as_nccl_answers_them(name: str, printed: str) -> None:
    assert f"{name} wrong: []" in printed, printed[-4000:]
