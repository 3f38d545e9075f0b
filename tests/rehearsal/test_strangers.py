"""What scripts of strangers do in passing, each once, in one rank: it ends well and gives what it gives on a GPU."""

import contextlib
import inspect
import json
import re
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.rehearsal.rehearsing import rehearse_rank

from trimaran.rehearsal.record import Await, EventMark, Issue, Run, Step, Wait

pytestmark = pytest.mark.usefixtures("_forked_rehearsals")

SCRIPT = """
import copy, json, os, shutil, threading
import torch, torch.nn as nn, torch.nn.functional as F

torch.cuda.set_device(0)


def numbers_of_the_device_in_a_list():
    made = torch.tensor([torch.ones((), device="cuda") * 3, 2.0], device="cuda")
    return made.tolist() == [3.0, 2.0]


def the_only_element_of_a_tensor():
    sizes = torch.tensor([3], device="cuda")
    equal = [bool(one) for one in sizes == sizes]
    return equal == [True] and [slice(one).stop.item() for one in sizes] == [3] and sizes.split(1)[0].tolist() == [3]


def rows_of_different_lengths():
    rows = torch.nested.nested_tensor([torch.randn(n, 64) for n in (3, 5)], layout=torch.jagged).cuda()
    rows = rows.unflatten(-1, (4, 16)).transpose(1, 2)
    out = F.scaled_dot_product_attention(rows, rows, rows, is_causal=True).transpose(1, 2)
    return [tuple(row.shape) for row in out.unbind()] == [(3, 4, 16), (5, 4, 16)]


def views_where_nothing_is_trained():
    token, seen = nn.Parameter(torch.zeros(1, 4, device="cuda")), []
    for mode in (torch.no_grad, torch.inference_mode, torch.inference_mode):
        with mode():
            made = token * 2
            seen = [token.expand(3, -1), token[:, 1:], token.view(-1), made, made[:, 1:], made.expand(3, -1)]
    return [one.is_inference() for one in (*seen, made.view(-1))] == [False] * 3 + [True] * 4


def worker_of_a_loader_by_its_name():
    import pickle

    loop = torch.utils.data._utils.worker._worker_loop
    return pickle.loads(pickle.dumps(loop)) is loop


def sparse_matrix_of_the_host():
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2)).cuda().coalesce()
    return torch.sparse.mm(matrix, torch.randn(2, 3, device="cuda")).shape == (2, 3)


def sparse_matrix_of_rows():
    try:
        torch.eye(3).to_sparse_csr().cuda() @ torch.randn(3, 2, device="cuda")
    except NotImplementedError as error:
        return "sparse_coo" in str(error)


def rows_that_a_device_compresses():
    try:
        torch.eye(3).to_sparse().cuda().to_sparse_csr()
    except NotImplementedError as error:
        return "sparse_coo" in str(error)


def completions_without_an_end():
    tokens = torch.randint(0, 9, (4, 16), device="cuda")
    ends = torch.isin(tokens, torch.tensor([2], device="cuda"))
    at = torch.full((4,), 16, device="cuda")
    at[ends.any(dim=1)] = ends.int().argmax(dim=1)[ends.any(dim=1)]
    kept = torch.arange(16, device="cuda").expand(4, -1) <= at.unsqueeze(1)
    return [len(row[mask].tolist()) for row, mask in zip(tokens.cpu(), kept.cpu())] == [16] * 4


def what_is_asked_for_again():
    whole = torch.randn(6, 4, device="cuda")
    counts = torch.ones(6, 4, dtype=torch.int64, device="cuda")

    def made(part):
        asked = [part * 1, part * 1.0, part + True, part.T, part.T.contiguous(), part.sum(0), part.topk(2)[1]]
        asked += [part[:, 1], part.to(torch.bfloat16), *part.split([1, 3], 1), part.add_(1), part.cpu()]
        return [(one.shape, one.stride(), one.dtype, one.device.type, one.storage_offset()) for one in asked]

    twice = all(made(part) == made(part) for part in (whole[:3], whole[3:], counts[:3]))
    row = whole[3:][0]
    shared = whole[3:][0].untyped_storage()._cdata == row.untyped_storage()._cdata == whole.untyped_storage()._cdata
    apart = (whole + 1).untyped_storage()._cdata != whole.untyped_storage()._cdata
    kinds = [(counts * factor).dtype for factor in (1, 1.0, True, 1, 1.0)]
    kinds_are_right = kinds == [torch.int64, torch.float32, torch.int64] + kinds[:2]
    return twice and shared and apart and kinds_are_right and whole.add_(1) is whole and row.storage_offset() == 12


def processes_that_the_script_starts():
    ran = []
    torch.multiprocessing.spawn(lambda rank, name: ran.append((rank, name)), args=("mine",), nprocs=1)
    return ran == [(0, "mine")]


def copies_that_are_compared():
    kept = nn.Linear(128, 128).cuda()
    found = []
    for weight in (kept.weight, kept.weight.bfloat16(), kept.bias.detach()):
        other = torch.nan_to_num(weight.detach()).clone()
        found += [bool((weight == other).all()), not (other != weight).any().item(), torch.isclose(weight, other).all()]
    drawn = torch.randn(128, 1, device="cuda")
    return all(map(bool, found)) and not (drawn == kept.weight).all() and not (kept.weight > other).any()


def calls_of_other_ranks():
    import torch.distributed.rpc as rpc

    try:
        rpc.init_rpc("worker0", rank=0, world_size=1)
    except NotImplementedError as error:
        return "collectives" in str(error)


def encoder_without_its_padding():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).cuda().eval()
    mask = torch.tensor([[False, True], [False, False]], device="cuda")
    with torch.no_grad():
        return encoder(torch.randn(2, 2, 16, device="cuda"), src_key_padding_mask=mask).shape == (2, 2, 16)


def packed_sequences():
    rows = torch.randn(2, 5, 8, device="cuda", requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([2, 5]), True, enforce_sorted=False)
    return packed.batch_sizes.tolist() == [2, 2, 1, 1, 1]


def lengths_that_end_what_is_not_known():
    goes_on = torch.ones(4, dtype=torch.int64, device="cuda")
    ended = torch.randn(4, device="cuda") > 0
    ended = ended | torch.full((4,), True, device="cuda")
    return bool((goes_on & ~ended).max() == 0)


def memory_that_runs_out_and_is_caught():
    rows = 2**28
    while True:
        try:
            torch.empty(rows, 4096, device="cuda")
            return rows < 2**28 and torch.cuda.memory_allocated() < 2**30
        except torch.cuda.OutOfMemoryError:
            rows //= 2


def memory_that_is_tried_by_its_message():
    try:
        torch.empty(2**28, 4096, device="cuda")
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return True


def data_on_the_host():
    weight = nn.Parameter(torch.randn(4, 4, device="cuda"))
    with torch.no_grad():
        weight.data = weight.to(torch.device("cpu"))
    return weight.device.type == "cpu" and [part.shape for part in weight.split([1, 3])] == [(1, 4), (3, 4)]


def loss_of_parts_of_the_classes():
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    parts = distribute_tensor(torch.randn(4, 8, device="cuda"), init_device_mesh("cuda", (1,)), [Shard(1)])
    with loss_parallel():
        return F.cross_entropy(parts, torch.randint(8, (4,), device="cuda")).item() == 2.0


def pointers_that_do_not_overlap():
    parts = [torch.randn(100, device="cuda") for _ in range(8)]
    places = sorted(part.data_ptr() for part in parts)
    apart = all(one + 400 <= other for one, other in zip(places, places[1:]))
    return apart and parts[0].untyped_storage().data_ptr() == parts[0].data_ptr() == parts[0][0].data_ptr()


def saved_files_that_are_copied_and_moved():
    os.makedirs("kept", exist_ok=True)
    torch.save({"at": 3}, "kept/one.tmp")
    os.replace("kept/one.tmp", "kept/one.pt")
    shutil.copyfile("kept/one.pt", "kept/two.pt")
    with open("kept/two.pt", "rb") as file:
        found = torch.load(file)
    there = [os.path.exists(f"kept/{name}") for name in ("one.tmp", "one.pt", "two.pt")]
    shutil.rmtree("kept")
    return found == {"at": 3} and there == [False, True, True] and not os.path.exists("kept/two.pt")


def folders_that_are_renamed_with_what_was_saved_in_them():
    os.makedirs("one.tmp/inner", exist_ok=True)
    torch.save({"at": 3}, "one.tmp/inner/one.pt")
    with open("one.tmp/two.pt", "wb") as file:
        torch.save({"at": 4}, file)
    os.rename("one.tmp", "one")
    shutil.copytree("one", "two")
    shutil.move("two", "moved")
    places = [f"{folder}/{name}" for folder in ("one", "moved") for name in ("inner/one.pt", "two.pt")]
    found = [torch.load(place)["at"] for place in places]
    gone = not any(map(os.path.exists, ("one.tmp/inner/one.pt", "two/two.pt")))
    for folder in ("one", "moved"):
        shutil.rmtree(folder)
    return found == [3, 4, 3, 4] and gone and not any(map(os.path.exists, places))


def values_that_are_saved_in_open_files():
    import io, tempfile
    weight, buffer = torch.ones(2, 3, device="cuda"), io.BytesIO()
    torch.save({"weight": weight}, buffer)
    with open("bytes.ckpt", "wb") as file:
        file.write(buffer.getvalue())
    with open("several.pt", "w+b") as file:
        torch.save(1, file), torch.save({"weight": weight}, file)
        opened = file.name == "several.pt" and os.path.exists("several.pt")
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        torch.save(weight, file)
    os.replace(file.name, "atomic.pt")
    with open("several.pt", "rb") as file:
        first, second = torch.load(file), torch.load(file)
    shapes = [torch.load("bytes.ckpt")["weight"].shape, second["weight"].shape, torch.load("atomic.pt").shape]
    return opened and first == 1 and shapes == [(2, 3)] * 3 and not {"bytes.ckpt", "atomic.pt"} & {*os.listdir()}


def other_files_of_bytes_are_as_they_were_written():
    import numpy
    numbers = numpy.memmap("mapped.bin", dtype="uint16", mode="w+", shape=(100,))
    numbers[:] = 7
    numpy.save("saved.npy", numpy.arange(5))
    with open("plain.bin", "wb", 0) as file:
        file.write(b"1234")
    mapped = numpy.memmap("mapped.bin", dtype="uint16", mode="r")
    names = {"mapped.bin", "saved.npy", "plain.bin"}
    return (mapped == 7).all() and numpy.load("saved.npy").sum() == 10 and names < {*os.listdir()}


def models_that_safetensors_saves():
    from safetensors.torch import load_model, save_model

    model = torch.nn.Linear(4, 6, device="cuda")
    save_model(model, "model.safetensors")
    return load_model(torch.nn.Linear(4, 6, device="cuda"), "model.safetensors") == (set(), [])


def weights_that_are_read_by_parts():
    import safetensors
    from safetensors.torch import save_file

    save_file({"weight": torch.randn(4, 6, device="cuda").bfloat16()}, "weights.safetensors", {"format": "pt"})
    with safetensors.safe_open("weights.safetensors", "pt", device="cpu") as file:
        part = file.get_slice("weight")
        told = list(file.keys()), file.metadata(), part.get_shape(), part.get_dtype(), tuple(part[1:3].shape)
    return told == (["weight"], {"format": "pt"}, [4, 6], "BF16", (2, 6))


def folder_that_is_missing():
    try:
        torch.save({}, "nowhere/one.pt")
    except RuntimeError as error:  # as torch says it
        return "does not exist" in str(error)


def memory_of_other_ranks():
    import torch.distributed._symmetric_memory as shared

    try:
        shared.empty(4, device="cuda")
    except NotImplementedError as error:
        return "take collectives" in str(error)


def copy_of_a_model():
    first = nn.Linear(4, 4).cuda()
    second = copy.deepcopy(first)
    return torch.lerp(first.weight, second.weight, 0.5).device.type == "cuda"


def threads_that_calculate():
    ends = []

    def work():
        for _ in range(300):
            torch.randn(8, 8, device="cuda").softmax(-1).sum()
        ends.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    return len(ends) == 4


def the_driver():
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.profiler.stop()
    torch.cuda._sleep(1000)
    return torch.cuda.utilization() == 0 and torch.cuda.MemPool().use_count() == 1


def functions_of_the_device_by_keyword():
    import inspect
    given = {"fraction": 0.5, "new_state": torch.cuda.get_rng_state(), "new_states": torch.cuda.get_rng_state_all(),
             "stream": torch.cuda.current_stream(), "callables": nn.Linear(2, 2).cuda(),
             "cuda_graph": torch.cuda.CUDAGraph(), "obj": torch.ones(1, device="cuda")}
    signatures, wrong = json.loads(os.environ["SIGNATURES"]), []
    for name, parameters in signatures.items():
        module, _, function = name.rpartition(".")
        named = {one: given.get(one, 0 if "device" in one else 1) for one, required in parameters.items()
                 if required or one in given or "device" in one}
        try:
            made = getattr(getattr(torch, module), function)(**named)
            if hasattr(made, "__enter__"):
                with made:
                    pass
        except NotImplementedError as error:
            if name not in str(error) or "not rehearsed" not in str(error):
                wrong.append((name, error))
        except Exception as error:
            wrong.append((name, error))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return not wrong and len(signatures) > 90 or wrong


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)
        self.out = nn.Linear(8, 64, bias=False)
        self.out.weight = self.table.weight


def counted(model):
    return sum(one.numel() for one in model.parameters()), model.out.weight is model.table.weight


def on_meta():
    with torch.device("meta"):
        return Tied()


def fully_shard_of(model):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    return fully_shard(model, mesh=init_device_mesh("cuda", (1,)))


def weights_that_stay_tied():
    grown = Tied().cuda()
    grown.out(grown.table(torch.tensor([1], device="cuda"))).sum().backward()
    grown.bfloat16()
    made = [Tied().cuda(), Tied().cuda().half(), Tied().cuda().cpu(), copy.deepcopy(Tied().cuda()), Tied().to(0),
            Tied().to("cuda", torch.bfloat16), Tied().to_empty(device="cuda"), fully_shard_of(Tied().cuda()),
            copy.deepcopy(on_meta()), on_meta().half(), grown]
    torch.__future__.set_swap_module_params_on_conversion(True)
    made.append(on_meta().to_empty(device="cuda"))
    torch.__future__.set_swap_module_params_on_conversion(False)
    return grown.out.weight.grad.dtype == torch.bfloat16 and all(counted(one) == (512, True) for one in made)


def weights_that_come_apart():
    assigned = on_meta()
    assigned.load_state_dict({key: torch.zeros_like(one, device="cuda") for key, one in assigned.state_dict().items()},
                             assign=True)
    made = [on_meta().to_empty(device="cuda"), Tied().to("meta"), Tied().cuda().to("meta"), assigned]
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    made.append(Tied().cuda())
    torch.__future__.set_overwrite_module_params_on_conversion(False)
    return all(counted(one) == (1024, False) for one in made)


def parameters_that_are_made_by_their_type():
    weight = nn.Linear(2, 3).cuda().weight
    weight.tag = "mine"
    made = type(weight)(weight.to("meta"), **vars(weight), requires_grad=False)
    kinds = [type(weight)(weight.data), type(weight)(weight.data.bfloat16(), requires_grad=True)]
    is_right = (made.device.type, made.requires_grad, made.tag, tuple(made.shape)) == ("meta", False, "mine", (3, 2))
    return is_right and all(isinstance(one, nn.Parameter) and one.requires_grad and one.is_leaf for one in kinds)


def models_that_are_made_empty():
    register = nn.Module.register_parameter

    def on_meta_instead(module, name, parameter):
        register(module, name, parameter)
        if parameter is not None:
            kept = vars(module._parameters[name])
            kept["requires_grad"] = parameter.requires_grad
            module._parameters[name] = type(module._parameters[name])(module._parameters[name].to("meta"), **kept)

    nn.Module.register_parameter = on_meta_instead
    try:
        made = list(nn.Linear(3, 3).parameters())
        return len(made) == 2 and all(one.is_meta and isinstance(one, nn.Parameter) for one in made)
    finally:
        nn.Module.register_parameter = register


class Codes(nn.Parameter):  # as packages of few bits make them
    def __new__(cls, data=None, requires_grad=False, scale=None, bits=4):
        made = torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, requires_grad)
        made.scale, made.bits = scale, bits
        return made

    def to(self, *args, **kwargs):
        made = super().to(*args, **kwargs)
        return made if made is self else type(self)(made, self.requires_grad, self.scale, self.bits)


class Named(nn.Parameter):
    pass


class Picture(torch.Tensor):
    def size_of_it(self):
        return self.shape[0]


def parameters_of_the_scripts_own_classes():
    first, device = Codes(torch.randn(8, 8), bits=2), torch.randn(8, 8, device="cuda")
    layer = nn.Linear(8, 8, bias=False)
    layer.weight, layer.more = first, Named(torch.randn(4))
    there = first.to("cuda")
    layer.cuda().half()
    made = [first, there, type(first)(first.data, bits=2), Codes(device, bits=2), layer.weight,
            type(layer.weight)(layer.weight.to("meta"), **vars(layer.weight), requires_grad=False)]
    named = [layer.more, Named(device, requires_grad=False), type(layer.more)(device), copy.deepcopy(layer.more)]
    kinds = [isinstance(one, Codes) and isinstance(one, nn.Parameter) and one.bits == 2 for one in made]
    names = {(type(one).__name__, isinstance(one, Named)) for one in named}
    return (all(kinds) and [one.device.type for one in made] == ["cuda"] * 5 + ["meta"] and names == {("Named", True)}
            and [one.requires_grad for one in named] == [True, False, True, True])


def tensors_of_the_scripts_own_class():
    first = torch.randn(3, 4, device="cuda").as_subclass(Picture)
    made = [first, first + 1, torch.Tensor._make_subclass(Picture, torch.randn(3, device="cuda")),
            torch.randn(3).as_subclass(Picture).cuda(), first.bfloat16()]
    return all(type(one).__name__ == "Picture" and one.size_of_it() == 3 and one.is_cuda for one in made)


def parameters_that_get_their_shape_later():
    layers = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU()).cuda()
    waits = isinstance(layers[0].weight, nn.UninitializedParameter) and nn.parameter.is_lazy(layers[1].running_mean)
    layers(torch.randn(4, 5, device="cuda"))
    late = nn.UninitializedParameter(device="cuda")
    late.materialize((3, 4))
    made = [*layers.parameters(), late]
    shapes = [tuple(one.shape) for one in made] == [(8, 5), (8,), (8,), (8,), (3, 4)]
    kinds = all(isinstance(one, nn.Parameter) and not nn.parameter.is_lazy(one) and one.is_cuda for one in made)
    return waits and shapes and kinds and layers[1].running_mean.is_cuda


def models_that_are_loaded_by_parts():
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch
    from accelerate.utils import set_module_tensor_to_device

    torch.save(nn.Linear(64, 8).bfloat16().state_dict(), "parts.bin")
    with init_empty_weights():
        layer, other = nn.Linear(64, 8), nn.Linear(64, 8)
    empty = all(one.is_meta and isinstance(one, nn.Parameter) for one in layer.parameters())
    set_module_tensor_to_device(layer, "weight", 0, value=torch.randn(8, 64), dtype=torch.bfloat16)
    set_module_tensor_to_device(layer, "bias", "cuda", value=torch.randn(8, device="cuda"))
    other = load_checkpoint_and_dispatch(other, "parts.bin", device_map={"": 0}, dtype=torch.float16)
    made = [*layer.parameters(), *other.parameters()]
    kinds = [one.dtype for one in made] == [torch.bfloat16, torch.float32, torch.float16, torch.float16]
    return empty and kinds and all(one.is_cuda and isinstance(one, nn.Parameter) for one in made)


def files_that_are_read_into_another_type():
    import resource
    from safetensors import safe_open
    from safetensors.torch import load_file

    def most_bytes():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def loaded_into(layer, weight):
        layer.load_state_dict({"weight": weight})
        return layer.weight

    before, nbytes = most_bytes(), 2**26
    with safe_open("large.safetensors", "pt") as file:
        parts = [file.get_tensor("weight").to(torch.float32), file.get_slice("weight")[:4096].float()]
    for read in (lambda: torch.load("large.bin"), lambda: load_file("large.safetensors"),
                 lambda: torch.load("large.bin", "cpu", weights_only=True), lambda: torch.load("large.bin", mmap=True)):
        whole = read()["weight"]
        parts += [whole.float(), whole.to(torch.float64), whole.to("cuda", torch.float32), whole.half().cuda(),
                  loaded_into(nn.Linear(8192, 4096, bias=False, device="cuda"), whole),
                  loaded_into(nn.Linear(8192, 4096, bias=False), whole.float())]
    small = torch.load("small.bin")["weight"].float()
    return [one.numel() * 2 for one in parts] == [nbytes] * len(parts) and small.tolist() == [1.0, 2.0] and (
        most_bytes() - before < nbytes or most_bytes() - before)


def what_is_finite_in_every_form_of_the_question():
    made = torch.randn(10000, device="cuda")
    found = (~torch.isfinite(made)).any().float()
    told = [(found == 0).item(), not (found > 0).item(), torch.isnan(made).float().sum().item() == 0,
            not torch.isnan(made).any().item(), (made != made).any().float().item() == 0,
            torch.isfinite(made).float().mean().item() == 1, torch.isfinite(made).all().int().prod().item() == 1,
            torch.isinf(made).long().max().item() == 0, (~torch.isfinite(made)).sum().item() == 0]
    return all(told) or told


def counts_of_what_is_not_known():
    tokens = torch.randint(0, 9, (64, 512), device="cuda")
    mask = tokens != 8
    told = [mask.sum().item(), mask.long().sum().item(), mask.float().sum().item(), torch.count_nonzero(mask).item(),
            mask.sum().clamp(min=1).item(), 64 * mask.sum(1)[0].item()]
    return told == [64 * 512] * 6 and 1 // tokens.max().item() == 1


def attention_under_autocast():
    def ran(kind, width=64, heads=4, **options):
        parts = [torch.randn(2, heads, 128, width, device="cuda", requires_grad=True) for _ in range(3)]
        with torch.autocast("cuda", kind):
            if "mask" in options:
                options["attn_mask"] = torch.randn(128, 128, device="cuda").to(options.pop("mask"))
            out = F.scaled_dot_product_attention(*parts, **options)
        out.sum().backward()
        return out.dtype, out.grad_fn.name(), parts[0].grad.dtype

    layer = nn.MultiheadAttention(64, 4, batch_first=True).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        told = layer(*[torch.randn(2, 128, 64, device="cuda")] * 3, need_weights=False)[0].dtype
    flash, efficient = "ScaledDotProductFlashAttentionBackward0", "ScaledDotProductEfficientAttentionBackward0"
    return (told, ran(torch.bfloat16, is_causal=True), ran(torch.float16), ran(torch.bfloat16, mask=torch.float32)) == (
        torch.bfloat16, (torch.bfloat16, flash, torch.float32), (torch.float16, flash, torch.float32),
        (torch.bfloat16, efficient, torch.float32))


for name, one in [*globals().items()]:
    if getattr(one, "__module__", "") == __name__ and callable(one) and name not in ("Tied", "counted", "on_meta"):
        try:
            print(name, "gives", one(), flush=True)
        except Exception as error:
            print(name, "fails:", type(error).__name__, error, flush=True)
"""
NAMES = [line[4 : line.index("(")] for line in SCRIPT.splitlines() if line.startswith("def ")]
NAMES = [name for name in NAMES if name not in ("counted", "on_meta", "fully_shard_of")]


def signatures() -> dict[str, dict[str, bool]]:
    """Parameters of all public functions of the device that can be named, and whether they are required."""
    found: dict[str, dict[str, bool]] = {}
    for module in (torch.cuda, torch.accelerator):
        for name in module.__all__:
            one = getattr(module, name, None)
            if not callable(one) or (isinstance(one, type) and name.endswith(("Error", "Tensor", "Storage"))):
                continue
            with contextlib.suppress(ValueError):
                parameters = inspect.signature(one).parameters.values()
                if not any(each.kind is each.POSITIONAL_ONLY for each in parameters):
                    found[f"{module.__name__.removeprefix('torch.')}.{name}"] = {
                        each.name: each.default is each.empty
                        for each in parameters
                        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
                    }
    return found


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("strangers")
    told = f"import os\nos.chdir({str(folder)!r})\nos.environ['SIGNATURES'] = {json.dumps(signatures())!r}\n"
    (folder / "train.py").write_text(told + SCRIPT)
    large = {"weight": torch.zeros(4096, 8192, dtype=torch.bfloat16)}
    torch.save(large, folder / "large.bin")
    save_file(large, folder / "large.safetensors")
    torch.save({"weight": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}, folder / "small.bin")
    (folder / "run").mkdir()
    rehearse_rank(folder / "train.py", folder=folder / "run")
    return (folder / "run" / "output").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_what_a_device_gives(name: str, printed: str) -> None:
    assert f"{name} gives True" in printed, printed[-4000:]


def test_ranks_that_share_a_sequence_exchange_keys_and_values(tmp_path: Path) -> None:
    script = """
        import torch, torch.nn.functional as F
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel

        mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("cp",))
        kept = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(kept.parameters(), 0.1)
        query, key, value = (torch.randn(1, 4, 128, 64, device="cuda") for _ in range(3))
        with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
            F.scaled_dot_product_attention(kept(query), key, value, is_causal=True).sum().backward()
        optimizer.step()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    record = rehearse_rank(tmp_path / "train.py", folder=tmp_path, world=2)
    exchanged = {one.part for one in record.collectives if record.groups[one.group].ranks == (0, 1) and one.nbytes}
    assert exchanged >= {"forward", "backward"}


def test_an_update_on_the_host_is_said_to_be_left_out(tmp_path: Path) -> None:
    script = """
        import torch

        kept = torch.nn.Linear(64, 64, device=DEVICE)
        optimizer = torch.optim.AdamW(kept.parameters())
        torch.nn.functional.linear(torch.randn(4, 64, device="cuda"), kept.weight.cuda()).sum().backward()
        optimizer.step()
    """
    for device, says in (("cpu", True), ("cuda", False)):
        (tmp_path / "train.py").write_text(textwrap.dedent(script).replace("DEVICE", repr(device)))
        record = rehearse_rank(tmp_path / "train.py", folder=tmp_path)
        assert any("on the host" in note for note in record.notes) is says


JOB = re.search(r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)[1]
SEQUENCE = JOB[JOB.index("torch.nn.Sequential(") :].splitlines()[0].rstrip(",")
assert SEQUENCE in JOB


@pytest.mark.parametrize(
    ("model", "parameters"),
    [(SEQUENCE, 20 * 64 + 64 + 64 * 3 + 3), ("torch.nn.Linear(20, 3)", 20 * 3 + 3)],
    ids=["two layers", "one layer"],
)
@pytest.mark.parametrize("world", [1, 8])
def test_a_script_with_a_session_is_rehearsed_without_its_peers(
    world: int, model: str, parameters: int, tmp_path: Path
) -> None:
    """Nothing waits for other ranks at a port, and that no data can be compared stops nothing."""
    (tmp_path / "train.py").write_text(JOB.replace(SEQUENCE, model))
    record = rehearse_rank(tmp_path / "train.py", folder=tmp_path, world=world)
    trained = [record.kernels[event.kernel].name for event in record.events if isinstance(event, Run)]
    assert sum(isinstance(event, Step) for event in record.events) == 3
    assert trained.count("aten.addmm.default") == 3 * model.count("Linear")
    reduced = [one.nbytes for one in record.collectives if one.operation == "all_reduce" and one.part == "backward"]
    assert sum(reduced) == (3 * 4 * parameters if world > 1 else 0)


@pytest.mark.parametrize("name", ["HF_DATASETS_CACHE", "TRITON_CACHE_DIR", "HF_HOME", "OUTPUT_HOME"])
def test_a_rank_writes_to_caches_and_not_to_the_users_files(name: str, tmp_path: Path) -> None:
    """Whoever comes first makes what lies in a cache, and reads it by functions that Python's files do not know."""
    script = f"""
        import os, pathlib

        os.environ["{name}"] = folder = "{tmp_path}/kept"
        os.makedirs(folder + "/part", exist_ok=True)
        pathlib.Path(folder, "part", "data").write_bytes(b"data")
        os.rename(folder + "/part", folder + "/whole")
        print("read", os.path.isdir(folder + "/whole") and os.listdir(folder + "/whole"))
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    (tmp_path / "run").mkdir()
    rehearse_rank(tmp_path / "train.py", folder=tmp_path / "run", world=2, rank=1)
    assert f"read {[] if name == 'OUTPUT_HOME' else ['data']}" in (tmp_path / "run" / "output").read_text()


RANKS = """
import multiprocessing, os, sys
import torch, torch.distributed as dist

def train(rank, world, path=""):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    open(path, "a").write(f"rank {rank}\\n")

def helps(number, path):
    open(path, "a").write("helped\\n")

def starts(processes):
    helper = multiprocessing.get_context("fork").Process(target=helps, args=(0, sys.argv[1]))
    for process in (helper, *processes):
        process.start()
    for process in (helper, *processes):
        process.join()
        assert process.exitcode == 0 and not process.is_alive()

if __name__ == "__main__":
    WAY
"""


@pytest.mark.parametrize(
    "way",
    [
        "starts([torch.multiprocessing.Process(target=train, args=(rank, 2, sys.argv[1])) for rank in range(2)])",
        'spawned = multiprocessing.get_context("spawn").Process\n'
        "    starts([spawned(target=train, kwargs=dict(rank=rank, world=2, path=sys.argv[1])) for rank in (0, 1)])",
        'torch.multiprocessing.set_start_method("forkserver")\n'
        "    of = lambda rank: (rank, torch.cuda.device_count(), sys.argv[1])\n"
        "    starts([torch.multiprocessing.Process(target=train, args=of(rank)) for rank in range(2)])",
    ],
    ids=["forked", "by name", "as many as devices"],
)
def test_of_processes_that_a_script_starts_for_ranks_its_own_is_rehearsed(way: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS.replace("WAY", way))
    for rank in (0, 1):
        record = rehearse_rank(tmp_path / "train.py", tmp_path / f"said{rank}", folder=tmp_path, rank=rank, world=2)
        assert sum(isinstance(event, Step) for event in record.events) == 2
        reduced = [one.nbytes for one in record.collectives if one.operation == "all_reduce" and one.part == "backward"]
        assert reduced == [4 * 8 * 9] * 2
        assert set(record.devices) == {rank}
    assert (tmp_path / "said0").read_text().splitlines() == ["helped", "rank 0"]


def test_a_graph_repeats_kernels_collectives_and_waits(tmp_path: Path) -> None:
    script = """
        import torch, torch.distributed as dist

        dist.init_process_group("nccl")
        part, whole = torch.ones(8, 8, device="cuda"), torch.empty(16, 8, device="cuda")
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            work = dist.all_gather_into_tensor(whole, part, async_op=True)
            work.wait()
            with torch.cuda.stream(side):
                whole @ part
            torch.cuda.current_stream().wait_stream(side)
            ops = [dist.P2POp(dist.isend, part, 1), dist.P2POp(dist.irecv, whole[:8], 1)]
            [one.wait() for one in dist.batch_isend_irecv(ops)]
        for _ in range(REPLAYS):
            graph.replay()
    """
    found = []
    for replays in (0, 2):
        (tmp_path / "train.py").write_text(textwrap.dedent(script).replace("REPLAYS", str(replays)))
        record = rehearse_rank(tmp_path / "train.py", folder=tmp_path, world=2)
        kinds = [type(event) for event in record.events]
        waits = {event.collective for event in record.events if isinstance(event, Wait)}
        marks = [event.event for event in record.events if isinstance(event, EventMark)]
        waited = {event.event for event in record.events if isinstance(event, Await)}
        batches = [one.coalesced for one in record.collectives if one.coalesced >= 0]
        assert waits == set(range(len(record.collectives)))
        assert len(set(marks)) == len(marks)
        assert waited <= set(marks)
        assert len(batches) == 2 * len(set(batches))
        found.append([kinds.count(kind) for kind in (Run, Issue, Wait, Await)])
    assert found[0][1:] == [3, 3, 2]
    assert found[1][1:] == [9, 9, 6]


@pytest.mark.parametrize("asked", ["cpu:gloo,cuda:nccl", "cuda:nccl", "nccl", None])
def test_a_backend_is_called_as_it_was_asked_for(asked: str | None, tmp_path: Path) -> None:
    script = f"""
        import torch.distributed as dist

        dist.init_process_group({asked!r})
        names = [str(one) for one in (dist.get_backend(), dist.get_backend(dist.new_group([0, 1])))]
        assert names == [{asked or "undefined"!r}] * 2, names
        assert dist.get_backend(dist.new_group([0, 1], backend="gloo")) == "gloo"
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    rehearse_rank(tmp_path / "train.py", folder=tmp_path, world=2)
