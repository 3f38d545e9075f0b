"""Tensors in safetensors files: every dtype and layout, whole and in slices, and files that are none."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.raising import raises

from trimaran.base.errors import CorruptDataError
from trimaran.checkpoint_files import container
from trimaran.checkpoint_files.container import TensorFile, TensorStream

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in container._NAMES}


def write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    stream = TensorStream(tensors, metadata)
    pieces = [bytes(piece) for piece in stream]
    assert sum(map(len, pieces)) == stream.size
    path.write_bytes(b"".join(pieces))


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Row-major bytes: NaNs and dtypes that cannot be compared are compared too."""
    if tensor.dtype.itemsize == 1:
        tensor = tensor.view(torch.uint8)
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return (
        found.shape == expected.shape
        and found.dtype == expected.dtype
        and torch.equal(plain_bytes(found), plain_bytes(expected))
    )


def layouts(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random bits of a dtype: contiguous, transposed, a stretch, empty, without dims, expanded."""
    draw = torch.Generator().manual_seed(3)
    bits = torch.randint(0, 256, (6, 10, 8 * dtype.itemsize), dtype=torch.uint8, generator=draw)
    whole = (bits % 2).bool() if dtype == torch.bool else bits.view(dtype)
    bytewise = whole.view(torch.uint8) if dtype.itemsize == 1 else whole
    found = {
        "whole": whole,
        "transposed": whole.transpose(0, 1),
        "stretch": bytewise[:, 3:7].view(dtype) if dtype.itemsize == 1 else whole[:, 3:7],
        "empty": whole[:0],
        "expanded": whole[:1].expand(4, 10, 8),
    }
    if dtype != torch.float4_e2m1fn_x2:
        found["without dims"] = plain_bytes(whole)[: dtype.itemsize].view(dtype).reshape(())
    return found


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("piece", [container.PIECE_BYTES, 100])
def test_every_dtype_and_layout_comes_back_whole_and_in_slices(
    tmp_path: Path, dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this reader and by that of safetensors; with pieces smaller than a row too."""
    monkeypatch.setattr(container, "PIECE_BYTES", piece)
    monkeypatch.setattr(container, "_LONG_STRETCH", piece)
    tensors = layouts(dtype)
    write(tmp_path / "state.safetensors", tensors, {"format": "pt"})
    with (
        TensorFile(tmp_path / "state.safetensors") as file,
        safe_open(tmp_path / "state.safetensors", framework="pt") as other,
    ):
        assert file.metadata == other.metadata() == {"format": "pt"}
        assert set(file.names) == set(other.keys()) == set(tensors)
        for name, tensor in tensors.items():
            assert (file.shape(name), file.dtype(name)) == (tensor.shape, dtype)
            assert same(file.tensor(name), tensor)
            assert same(other.get_tensor(name), tensor)
            for dim, size in enumerate(tensor.shape):
                for low, high in ((0, size), (0, size // 2), (size // 3, size - 1), (size, size), (size - 1, size)):
                    if 0 <= low <= high:
                        found = file.part(name, dim, low, high)
                        bits = tensor.view(torch.uint8) if dtype.itemsize == 1 else tensor
                        assert same(found, bits.narrow(dim, low, high - low).view(dtype)), (name, dim, low, high)


def test_conjugated_negated_and_required_tensors(tmp_path: Path) -> None:
    numbers = torch.randn(5, 4, dtype=torch.complex64)
    tensors = {"conj": numbers.conj(), "neg": numbers.conj().imag, "grad": torch.randn(3, requires_grad=True)}
    write(tmp_path / "state.safetensors", tensors)
    with TensorFile(tmp_path / "state.safetensors") as file:
        assert all(torch.equal(file.tensor(name), tensor) for name, tensor in tensors.items())


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = torch.zeros(1000, 1000)
    pieces = list(TensorStream({"weight": tensor}))[1:]
    tensor.fill_(1)
    assert pieces[0].cast("f")[0] == 1


def test_of_any_other_tensor_one_piece_at_a_time_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "PIECE_BYTES", 4000)
    stream = TensorStream({"weight": torch.zeros(1000, 100).t()})
    assert max(len(piece) for piece in stream) <= 4000


def test_no_tensors_and_a_name_of_any_letters(tmp_path: Path) -> None:
    write(tmp_path / "none.safetensors", {})
    with TensorFile(tmp_path / "none.safetensors") as file:
        assert file.names == ()
    write(tmp_path / "one.safetensors", {"höhe \u2028 \U0001f600": torch.ones(2)})
    with TensorFile(tmp_path / "one.safetensors") as file, safe_open(tmp_path / "one.safetensors", "pt") as other:
        assert list(file.names) == list(other.keys()) == ["höhe \u2028 \U0001f600"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex128), "view_as_real"),
        (lambda: torch.zeros(2, 2).to_sparse(), "to_dense"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "quantized"),
        (lambda: torch.zeros(2, device="meta"), "meta"),
        (lambda: torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "single"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(make: Callable[[], torch.Tensor], reason: str) -> None:
    with raises("tensors.cannot-be-written", tensor="weight", match=reason):
        TensorStream({"weight": make()})


def test_slices_that_a_tensor_has_not(tmp_path: Path) -> None:
    write(tmp_path / "state.safetensors", {"weight": torch.zeros(3, 4)})
    with TensorFile(tmp_path / "state.safetensors") as file:
        for dim, low, high in ((2, 0, 1), (-1, 0, 1), (0, 0, 4), (0, 2, 1), (0, -1, 1)):
            with raises("tensors.no-such-slice", tensor="weight"):
                file.part("weight", dim, low, high)
        with raises("tensors.damaged", CorruptDataError):
            file.tensor("bias")


def test_a_file_that_is_cut_short_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    """Where a mapped file would end the process."""
    path = tmp_path / "state.safetensors"
    write(path, {"weight": torch.zeros(100_000)})
    with TensorFile(path) as file:
        with path.open("r+b") as other:
            other.truncate(1000)
        with raises("tensors.damaged", CorruptDataError, path=str(path)):
            file.tensor("weight")
        with raises("tensors.damaged", CorruptDataError, path=str(path)):
            file.part("weight", 0, 99_000, 100_000)


def with_header(header: object, content: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


NONE = {
    "empty": b"",
    "seven bytes": bytes(7),
    "a header longer than the file": (1000).to_bytes(8, "little") + b"{}",
    "a header of 2**63 bytes": (2**63).to_bytes(8, "little") + b"{}",
    "no JSON": with_header(b"{"),
    "no text": with_header(b"\xff\xff"),
    "nested too deep": with_header(b"[" * 100_000),
    "a list": with_header([]),
    "more bytes than tensors": with_header({}, bytes(4)),
    "a hole": with_header({"a": entry([1], [4, 8])}, bytes(8)),
    "an overlap": with_header({"a": entry([1], [0, 4]), "b": entry([1], [0, 4])}, bytes(4)),
    "another size than its shape": with_header({"a": entry([2], [0, 4])}, bytes(4)),
    "beyond the end": with_header({"a": entry([2], [0, 8])}, bytes(4)),
    "a negative dim": with_header({"a": entry([-1], [0, 4])}, bytes(4)),
    "a dim that no memory has": with_header({"a": entry([0, 2**61], [0, 0])}),
    "dims that no memory has": with_header({"a": entry([0, 2**40, 2**40], [0, 0])}),
    "a dim of 5,000 digits": with_header(
        b'{"a": {"dtype": "F32", "shape": [' + b"1" * 5000 + b'], "data_offsets": [0, 0]}}'
    ),
    "a fraction": with_header({"a": entry([1.5], [0, 6])}, bytes(6)),
    "65 dims": with_header({"a": entry([1] * 65, [0, 4])}, bytes(4)),
    "an unknown dtype": with_header({"a": entry([1], [0, 4], "\x1b[2J")}, bytes(4)),
    "half a pair": with_header({"a": entry([3], [0, 1], "F4")}, bytes(1)),
    "metadata that are no texts": with_header({"__metadata__": {"a": 1}}),
    "an unknown key": with_header({"a": {**entry([1], [0, 4]), "more": 1}}, bytes(4)),
}


@pytest.mark.parametrize("content", NONE.values(), ids=NONE.keys())
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.safetensors").write_bytes(content)
    with raises("tensors.damaged", CorruptDataError, path=str(tmp_path / "state.safetensors")) as caught:
        TensorFile(tmp_path / "state.safetensors")
    assert caught.value.message.isprintable()


def test_mutated_headers_raise_no_other_error(tmp_path: Path) -> None:
    draw, path = random.Random(11), tmp_path / "state.safetensors"
    write(path, {"weight": torch.zeros(3, 4), "step": torch.tensor(3), "mask": torch.ones(5, dtype=torch.bool)})
    content = path.read_bytes()
    refused = 0
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
        try:
            with TensorFile(path) as file:
                for name in file.names:
                    file.tensor(name)
        except CorruptDataError:
            refused += 1
    assert 1000 < refused < 2000


def test_a_missing_file_a_folder_and_a_link_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "state.safetensors", {})
    (tmp_path / "link").symlink_to(tmp_path / "state.safetensors")
    for path in (tmp_path / "none", tmp_path, tmp_path / "link"):
        with raises("tensors.damaged", CorruptDataError):
            TensorFile(path)
