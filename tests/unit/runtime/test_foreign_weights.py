"""Weights of others: pickles that are not run, archives and directories that are damaged, files that do not fit."""

import argparse
import io
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from tests.raising import raises
from tests.weights import read_weights
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import trimaran
from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError, TrimaranError
from trimaran.checkpoint_files.archives import load_archive
from trimaran.checkpoint_files.content import Content, Form, OptimizerContent, same_bits
from trimaran.checkpoint_files.dcp import _check_covered
from trimaran.checkpoint_files.exports import write_export
from trimaran.checkpoint_files.imports import open_content
from trimaran.runtime.checkpoint.weights import write_weights

FORMATS = {"safetensors": "m.safetensors", "pt": "m.pt", "dcp": "dcp", "huggingface": "hf"}


class Tied(nn.Module):
    """A tied weight, batch norm, bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.bfloat16()


def trained(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def save_dcp(folder: Path, seed: int = 0) -> nn.Module:
    model, optimizer = trained(seed)
    weights, state = get_state_dict(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": weights, "optim": state}, checkpoint_id=folder, no_dist=True)
    return model


def archive_of(path: Path, pickled: bytes) -> Path:
    """An archive of `torch.save` with this pickle, whose checksums are right."""
    torch.save({"w": torch.ones(2)}, path)
    with zipfile.ZipFile(path) as before:
        records = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as after:
        for name, content in records.items():
            after.writestr(name, pickled if name.endswith("data.pkl") else content)
    return path


class TestPickles:
    def test_nothing_is_called(self, tmp_path: Path) -> None:
        """What `pickle.loads` would run is refused, in an archive and in the metadata of a directory."""
        made = tmp_path / "made"

        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(made),)

        for protocol in (2, 4):
            content = pickle.dumps({"weights": Evil()}, protocol)
            with pytest.raises(TrimaranError):
                open_content(archive_of(tmp_path / "m.pt", content), trust_pickle=True)
            save_dcp(tmp_path / f"dcp{protocol}")
            (tmp_path / f"dcp{protocol}" / ".metadata").write_bytes(content)
            with raises("weights.damaged-archive", CorruptDataError, match=r"posix\.mkdir|posix mkdir"):
                open_content(tmp_path / f"dcp{protocol}", trust_pickle=True)
        assert not made.exists()
        pickle.loads(content)  # noqa: S301 it is what others do
        assert made.exists()

    @pytest.mark.parametrize("place", ["archive", "metadata"])
    @pytest.mark.parametrize(
        "content",
        [b"", b".", b"\x80\x02", b"\x80\x02}q", b"\x80\x02e.", b"I5\n.", b"\x80\x02X\xff\xff\xff\xff.",
         b"\x80\x02h\x05.", b"\x80\x02]]s.", b"\x80\x02})K\x01s.", b"\x80\x02Q.", b"\x80\x63.",
         b"\x80\x02\x8a\xff" + b"1" * 300,
         b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.",  # a key that is hashed as deep as it is
         b"\x80\x02}r\xff\xff\xff\x7f.",  # room for two thousand million values
         b"\x80\x02]q\x00" + b"h\x00" * 100 + b"(h\x00e.",
         b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."],
        ids=lambda content: repr(content[:24]),
    )  # fmt: skip
    def test_what_is_none_is_refused(self, content: bytes, place: str, tmp_path: Path) -> None:
        if place == "archive":
            path = archive_of(tmp_path / "m.pt", content)
        else:
            path = tmp_path
            (path / ".metadata").write_bytes(content)
        with pytest.raises(TrimaranError):
            open_content(path, trust_pickle=True)

    def test_a_tensor_larger_than_its_archive_is_refused(self, tmp_path: Path) -> None:
        """torch makes room for it, of whatever it finds there."""
        torch.save(torch.ones(4), tmp_path / "m.pt")
        with zipfile.ZipFile(tmp_path / "m.pt") as archive:
            pickled = archive.read(archive.namelist()[0])
        assert pickled.count(b"K\x04\x85") == 1
        for size in (b"J\xff\xff\xff\x7f", b"M\xff\xff"):
            path = archive_of(tmp_path / "large.pt", pickled.replace(b"K\x04\x85", size + b"\x85"))
            for file in (path, io.BytesIO(path.read_bytes())):
                with raises("weights.damaged-archive", CorruptDataError):
                    load_archive(file, "here")


class TestArchives:
    def test_views_and_parameters_are_whole_tensors(self, tmp_path: Path) -> None:
        flat = torch.arange(24.0)
        state = {
            "rows": flat[6:18].view(3, 4),
            "turned": flat.view(4, 6).t(),
            "parameter": nn.Parameter(flat[:2]),
            "number": torch.tensor(3, dtype=torch.int64),
            "none": torch.empty(0, 3),
            "small": torch.ones(3, dtype=torch.float8_e4m3fn),
            "wide": torch.ones(3, dtype=torch.uint32),
            "pairs": torch.ones(2, dtype=torch.complex64),
        }
        torch.save(state, tmp_path / "m.pt")
        with open_content(tmp_path / "m.pt", trust_pickle=True) as content:
            for name, tensor in state.items():
                assert same_bits(content.read(name), tensor.detach()), name

    @pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict"])
    def test_weights_among_other_things(self, key: str, tmp_path: Path) -> None:
        model, optimizer = trained()
        others = {"epoch": 3, "args": {"lr": 0.1}, "optimizer_state_dict": optimizer.state_dict()}
        torch.save({key: model.state_dict(), **others}, tmp_path / "m.pt")
        with open_content(tmp_path / "m.pt", trust_pickle=True) as content:
            assert [*content.forms] == [*model.state_dict()]
            assert content.optimizer is not None
            assert content.optimizer.groups[0].members == (0, 1, 2, 3)

    def test_each_flipped_bit_of_a_tensor_is_found(self, tmp_path: Path) -> None:
        """`torch.load` takes them without a word."""
        path = tmp_path / "m.pt"
        torch.save({"w": torch.zeros(100)}, path)
        good = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            record = next(one for one in archive.infolist() if one.filename.endswith("data/0"))
        start = good.index(b"\0" * 400, record.header_offset)
        for byte in random.Random(0).sample(range(400), 20):
            damaged = bytearray(good)
            damaged[start + byte] ^= 1
            path.write_bytes(damaged)
            assert torch.load(path, weights_only=True)["w"].any()
            with open_content(path, trust_pickle=True) as content, raises("weights.damaged-archive", CorruptDataError):
                content.verify()

    def test_what_is_not_read_is_refused_with_a_way_out(self, tmp_path: Path) -> None:
        old = tmp_path / "old.pt"
        torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
        with raises("weights.old-pickle"):
            open_content(old, trust_pickle=True)
        torch.save([1, 2], tmp_path / "list.pt")
        with raises("weights.no-state-dict"):
            open_content(tmp_path / "list.pt", trust_pickle=True)
        torch.save({"model": {"w": torch.ones(2)}, "args": argparse.Namespace(lr=0.1)}, tmp_path / "args.pt")
        with raises("weights.other-objects", InputError, match=r"argparse\.Namespace"):
            open_content(tmp_path / "args.pt", trust_pickle=True)

    def test_a_compressed_archive_is_not_unpacked(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.pt"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
        with raises("weights.damaged-archive", CorruptDataError):
            open_content(path, trust_pickle=True)


class TestTrust:
    def test_pickles_need_it(self, tmp_path: Path) -> None:
        model, _ = trained()
        torch.save(model.state_dict(), tmp_path / "m.pt")
        torch.save(model.state_dict(), tmp_path / "m.safetensors")  # whatever its name
        save_dcp(tmp_path / "dcp")
        (tmp_path / "hf").mkdir()
        torch.save(model.state_dict(), tmp_path / "hf" / "pytorch_model.bin")
        with raises("weights.pickled", match="--trust-pickle"):
            read_weights(Tied(), tmp_path / "m.safetensors")
        for name in ("m.pt", "dcp", "hf"):
            with raises("weights.pickled", match="--trust-pickle"):
                read_weights(Tied(), tmp_path / name)
            loaded = Tied()
            read_weights(loaded, tmp_path / name, trust_pickle=True)
            assert same_bits(loaded.first.weight.detach(), model.state_dict()["first.weight"])

    def test_safetensors_needs_none(self, tmp_path: Path) -> None:
        model, _ = trained()
        write_weights(model.state_dict(), tmp_path / "m.pt")  # whatever its name
        read_weights(Tied(), tmp_path / "m.pt")


class TestDirectories:
    def test_each_damaged_place_of_a_chunk_is_found(self, tmp_path: Path) -> None:
        """`dcp.load` takes them without a word."""
        model = save_dcp(tmp_path / "dcp")
        chunks = tmp_path / "dcp" / "__0_0.distcp"
        good = chunks.read_bytes()
        first = model.state_dict()["first.weight"]
        start = good.index(first.view(torch.uint8).numpy().tobytes())
        for byte in range(0, first.nbytes, 5):
            damaged = bytearray(good)
            damaged[start + byte] ^= 4
            chunks.write_bytes(damaged)
            with pytest.raises(CorruptDataError), open_content(tmp_path / "dcp", trust_pickle=True) as content:
                content.verify()
        chunks.write_bytes(good[:-1000])
        with pytest.raises(CorruptDataError), open_content(tmp_path / "dcp", trust_pickle=True) as content:
            content.verify()
        chunks.unlink()
        with pytest.raises(CorruptDataError), open_content(tmp_path / "dcp", trust_pickle=True) as content:
            content.verify()

    @pytest.mark.parametrize(
        ("shape", "boxes", "right"),
        [
            ((4,), [((0,), (2,)), ((2,), (2,))], True),
            ((4,), [((0,), (3,)), ((2,), (1,))], False),  # 1 element is twice, 1 is missing
            ((4,), [((0,), (2,))], False),
            ((4,), [((0,), (2,)), ((2,), (3,))], False),
            ((2, 2), [((0, 0), (1, 2)), ((1, 0), (1, 1)), ((1, 1), (1, 1))], True),
            ((2, 2), [((0, 0), (2, 1)), ((0, 0), (1, 2))], False),
            ((), [((), ())], True),
            ((0, 3), [((0, 0), (0, 3))], True),
        ],
    )
    def test_chunks_make_up_a_tensor_or_are_refused(self, shape: Any, boxes: Any, right: bool) -> None:
        if right:
            _check_covered("w", shape, boxes)
            return
        with pytest.raises(ValueError, match="'w'"):
            _check_covered("w", shape, boxes)

    def test_files_of_other_folders_are_not_opened(self, tmp_path: Path) -> None:
        save_dcp(tmp_path / "dcp")
        path = tmp_path / "dcp" / ".metadata"
        content = path.read_bytes()
        assert b"__0_0.distcp" in content
        path.write_bytes(content.replace(b"__0_0.distcp", b"../../passwd"))
        with raises("weights.damaged-dcp", CorruptDataError, match="passwd"):
            open_content(tmp_path / "dcp", trust_pickle=True)


class TestFolders:
    def shards(self, folder: Path) -> nn.Module:
        model, _ = trained()
        state = {name: one.clone() for name, one in model.state_dict().items() if name != "last.weight"}
        names = [*state]
        folder.mkdir()
        save_file({name: state[name] for name in names[:3]}, folder / "a.safetensors")
        save_file({name: state[name] for name in names[3:]}, folder / "b.safetensors")
        places = {name: "a.safetensors" if name in names[:3] else "b.safetensors" for name in names}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        return model

    def test_shards_are_read_and_tied_weights_are_tied(self, tmp_path: Path) -> None:
        model = self.shards(tmp_path / "hf")
        loaded = Tied()
        read_weights(loaded, tmp_path / "hf")
        assert loaded.last.weight is loaded.first.weight
        for name, one in model.state_dict().items():
            assert same_bits(loaded.state_dict()[name], one), name

    def test_files_of_the_cache_of_downloads_are_links(self, tmp_path: Path) -> None:
        self.shards(tmp_path / "hf")
        (tmp_path / "blob").write_bytes((tmp_path / "hf" / "a.safetensors").read_bytes())
        (tmp_path / "hf" / "a.safetensors").unlink()
        (tmp_path / "hf" / "a.safetensors").symlink_to(tmp_path / "blob")
        read_weights(Tied(), tmp_path / "hf")

    def test_a_shard_that_is_missing_or_another_is_named(self, tmp_path: Path) -> None:
        self.shards(tmp_path / "hf")
        save_file({"other": torch.ones(1)}, tmp_path / "hf" / "b.safetensors")
        with raises("weights.not-in-shard", CorruptDataError, match="b.safetensors"):
            read_weights(Tied(), tmp_path / "hf")
        (tmp_path / "hf" / "b.safetensors").unlink()
        with raises("weights.missing-shard", CorruptDataError, match="b.safetensors"):
            read_weights(Tied(), tmp_path / "hf")
        index = tmp_path / "hf" / "model.safetensors.index.json"
        index.write_text(index.read_text().replace("b.safetensors", "b" * 300))  # longer than any name
        with raises("weights.missing-shard", CorruptDataError, match="b" * 300):
            read_weights(Tied(), tmp_path / "hf")

    @pytest.mark.parametrize(
        ("names", "said"),
        [
            ([], "is empty"),
            (["a.txt", "b", "c", "d"], "has no checkpoint and no weights, but a.txt, b, c and 1 more"),
            (
                ["one.safetensors", "two.pt"],
                "has 2 files of weights and no index of them: name the file, such as .*one",
            ),
            (["run.json", "report.json"], "is a run without a checkpoint: trimaran train --save-every"),
            (["first/checkpoints/step-00000001/COMMITTED"], "has runs with checkpoints: name one, such as .*first"),
            (["run.json", "checkpoints/step-00000001/FORMAT"], "has no checkpoint whose save has ended"),
            (["step-00000001/FORMAT"], "has no checkpoint whose save has ended"),
            (["FORMAT"], "has no checkpoint whose save has ended"),
        ],
    )
    def test_a_folder_of_something_else_is_refused_with_what_is_there(
        self, names: list[str], said: str, tmp_path: Path
    ) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        with raises("weights.unknown-folder", match=said) as caught:
            read_weights(Tied(), tmp_path)
        assert "a run, a folder of checkpoints" in caught.value.message

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        """A damaged file of weights says that it is damaged; a text, an empty file and a device are no weights."""
        (tmp_path / "notes.txt").write_text("a text that is longer than a header")
        (tmp_path / "plan.json").touch()
        for path in (tmp_path / "notes.txt", tmp_path / "plan.json", Path("/dev/null")):
            with raises("weights.unknown-file", InputError, match="is no file of weights"):
                read_weights(Tied(), path)
        (tmp_path / "m.safetensors").write_bytes(b"\x20")
        with raises("tensors.damaged", CorruptDataError):
            read_weights(Tied(), tmp_path / "m.safetensors")


class TestFit:
    def test_narrower_dtypes_are_converted_where_no_value_changes(self, tmp_path: Path) -> None:
        values = torch.randn(3, 2).bfloat16()
        save_file({"weight": values, "bias": torch.ones(3).half()}, tmp_path / "m.safetensors")
        model = nn.Linear(2, 3)
        read_weights(model, tmp_path / "m.safetensors")
        assert torch.equal(model.weight, values.float())
        with raises("weights.other-dtypes", match="weight bfloat16 in the file, float16 in the model"):
            read_weights(nn.Linear(2, 3).half(), tmp_path / "m.safetensors")

    def test_every_name_is_in_the_refusal(self, tmp_path: Path) -> None:
        save_file({"weight": torch.ones(3, 2), "more": torch.ones(1)}, tmp_path / "m.safetensors")
        with raises("weights.other-model") as caught:
            read_weights(nn.Linear(2, 3), tmp_path / "m.safetensors")
        assert (caught.value.figures["missing"], caught.value.figures["unexpected"]) == (("bias",), ("more",))

    def test_names_of_a_tied_weight_with_other_values_are_refused(self, tmp_path: Path) -> None:
        model, _ = trained()
        state = {name: one.clone() for name, one in model.state_dict().items()}
        state["last.weight"] += 1
        save_file(state, tmp_path / "m.safetensors")
        with raises("weights.tied-differ", match=r"first\.weight and last\.weight"):
            read_weights(Tied(), tmp_path / "m.safetensors")


# ---------------------------------------------------------------------------------------------------------------------
# Written


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of a session."""
    job = trimaran.Job(
        model=lambda: nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 1)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        dataset=lambda: torch.utils.data.TensorDataset(torch.ones(20, 3), torch.ones(20, 1)),
        global_batch_size=5,
    )
    with trimaran.init(job, record=False) as session:
        for batch in session.batches():
            session.step(batch)
        session.save_checkpoint(tmp_path / "run" / "checkpoints")
        session.save(tmp_path / "expected.safetensors")
    return tmp_path / "run"


class TestExports:
    @pytest.mark.parametrize("to", FORMATS)
    def test_what_is_there_is_not_written_over(self, to: str, source: Path, tmp_path: Path) -> None:
        for name, make in (("file", lambda path: path.write_text("mine")), ("folder", lambda path: path.mkdir())):
            make(tmp_path / name)
            with raises("export.target-exists"):
                trimaran.export_checkpoint(source, tmp_path / name, to=to)
        assert (tmp_path / "file").read_text() == "mine"
        assert not any((tmp_path / "folder").iterdir())

    @pytest.mark.parametrize("to", FORMATS)
    def test_a_file_that_appears_meanwhile_stays(
        self, to: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process writes the target after it was looked for."""
        target = tmp_path / "out" / "target"
        monkeypatch.setattr("trimaran.checkpoint_files.exports.check_target", lambda path: None)
        monkeypatch.setattr("trimaran.checkpoint_files.exports._check_room", _make(target))
        with raises("export.unwritable", EnvironmentProblem):
            trimaran.export_checkpoint(source, target, to=to)
        assert (target / "mine" if target.is_dir() else target).read_text() == "mine"
        assert [one.name for one in target.parent.iterdir()] == ["target"]

    def test_a_disk_that_fills_leaves_nothing(self, source: Path, tmp_path: Path) -> None:
        """A process that may write no more than some bytes to a file, as on a disk that is full."""
        folder = tmp_path / "full"
        folder.mkdir()
        code = (
            "import resource, sys, torch, trimaran\n"
            "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
            "for to in sys.argv[3:]:\n"
            "    for limit in (0, 100, 700, most):\n"
            "        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))\n"
            "        try:\n"
            "            trimaran.export_checkpoint(sys.argv[1], sys.argv[2] + f'/{to}', to=to)\n"
            "        except trimaran.TrimaranError as error:\n"
            "            sys.stderr.write(f'{error.code}\\n')\n"
        )
        arguments = [sys.executable, "-c", code, str(source), str(folder), *FORMATS]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        said = [line for line in done.stderr.splitlines() if line.startswith("export.")]
        assert said == ["export.unwritable"] * 3 * len(FORMATS), done.stderr
        assert {one.name for one in folder.iterdir()} == {*FORMATS}

    def test_room_is_asked_for_first(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trimaran.checkpoint_files.disk.LocalDisk.free_bytes", lambda self, path: 1000)
        with raises("export.no-space", EnvironmentProblem) as caught:
            trimaran.export_checkpoint(source, tmp_path / "m.pt")
        assert caught.value.figures["free"] == 1000
        assert not (tmp_path / "m.pt").exists()

    def test_a_source_that_is_damaged_leaves_nothing(self, source: Path, tmp_path: Path) -> None:
        made = trimaran.export_checkpoint(source, tmp_path / "dcp", to="dcp")
        assert made.files == (".metadata", "__0_0.distcp")
        chunks = tmp_path / "dcp" / "__0_0.distcp"
        chunks.write_bytes(chunks.read_bytes()[:-2000])
        for to, target in FORMATS.items():
            with pytest.raises(CorruptDataError):
                trimaran.export_checkpoint(tmp_path / "dcp", tmp_path / "out" / target, to=to, trust_pickle=True)
        assert not [*(tmp_path / "out").iterdir()]

    def test_any_format_becomes_any_other(self, source: Path, tmp_path: Path) -> None:
        expected = load_file(tmp_path / "expected.safetensors")
        made: dict[str, Path] = {"checkpoint": source}
        for to, target in FORMATS.items():
            trimaran.export_checkpoint(source, tmp_path / target, to=to, optimizer=to in ("pt", "dcp"))
            made[to] = tmp_path / target
        for of, path in made.items():
            for to, target in FORMATS.items():
                again = tmp_path / f"{of} {target}"
                written = trimaran.export_checkpoint(path, again, to=to, trust_pickle=True)
                assert written.tensors == len(expected)
                with open_content(again, trust_pickle=True) as content:
                    assert content.forms.keys() == expected.keys()
                    assert all(same_bits(content.read(name), one) for name, one in expected.items()), (of, to)

    def test_the_optimizer_goes_where_there_is_a_place(self, source: Path, tmp_path: Path) -> None:
        for to in ("safetensors", "huggingface"):
            with raises("export.no-place-for-optimizer"):
                trimaran.export_checkpoint(source, tmp_path / "out", to=to, optimizer=True)
        with raises("export.no-optimizer"):
            trimaran.export_checkpoint(tmp_path / "expected.safetensors", tmp_path / "m.pt", optimizer=True)

    def test_formats_and_options_that_mean_nothing_are_refused(self, source: Path, tmp_path: Path) -> None:
        for options, code in (
            ({"to": "onnx"}, "export.unknown-format"),
            ({}, "export.no-format"),
            ({"to": "pt", "shard_bytes": 5}, "export.only-huggingface"),
            ({"to": "huggingface", "shard_bytes": 0}, "export.no-shard"),
        ):
            with raises(code, InputError):
                trimaran.export_checkpoint(source, tmp_path / "out", **options)

    def test_a_configuration_is_copied(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "mine"}')
        for number, given in enumerate((tmp_path, tmp_path / "config.json")):
            target = tmp_path / f"hf{number}"
            assert not trimaran.export_checkpoint(source, target, to="huggingface", config=given).notes
            assert (target / "config.json").read_text() == '{"model_type": "mine"}'
        assert (
            load_file(tmp_path / "hf0" / "model.safetensors").keys()
            == load_file(tmp_path / "expected.safetensors").keys()
        )
        (made,) = trimaran.export_checkpoint(source, tmp_path / "without", to="huggingface").notes
        assert "config.json" in made

    def test_an_optimizer_that_is_not_all_there_is_refused(self, tmp_path: Path) -> None:
        kept = OptimizerContent(
            states={}, groups=(), read=lambda *_: torch.ones(1), incomplete="its order is not known"
        )
        content = Content(source="here", kind="checkpoint", forms={}, read=lambda _: torch.ones(1), optimizer=kept)
        with raises("export.incomplete-optimizer", match="its order"):
            write_export(content, tmp_path / "m.pt", "pt", optimizer=True)

    def test_tied_weights_of_a_model_that_is_made_without_ties_have_each_name(self, tmp_path: Path) -> None:
        """`from_pretrained` would draw the other name at random."""
        weight = torch.ones(2)
        content = Content(
            source="here",
            kind="checkpoint",
            forms=dict.fromkeys(("a", "b"), Form((2,), torch.float32)),
            read=lambda _: weight,
            ties={"b": "a"},
        )
        for said, names in ((b'{"tie_word_embeddings": false}', {"a", "b"}), (b"{}", {"a"}), (None, {"a"})):
            target = tmp_path / f"hf{said}"
            write_export(content, target, "huggingface", config=said)
            assert load_file(target / "model.safetensors").keys() == names

    def test_the_state_of_an_optimizer_is_that_of_torch(self, tmp_path: Path) -> None:
        """Of one that was given names, in an order that is not the model's."""
        made: list[torch.optim.Optimizer] = []

        def optimizer(parameters: Any) -> torch.optim.Optimizer:
            found = torch.optim.SGD([*parameters.named_parameters()][::-1], lr=1e-2, momentum=0.9)
            made.append(found)
            return found

        job = trimaran.Job(
            model=lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)),
            loss=nn.functional.mse_loss,
            optimizer=optimizer,
            dataset=lambda: torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 1)),
            global_batch_size=4,
        )
        with trimaran.init(job, record=False) as session:
            for batch in session.batches():
                session.step(batch)
            session.save_checkpoint(tmp_path / "checkpoints")
            assert session.optimizer is not None
            expected = session.optimizer.state_dict()
        assert expected["param_groups"][0]["param_names"][0] == "1.bias"
        trimaran.export_checkpoint(tmp_path, tmp_path / "m.pt", optimizer=True)
        found = torch.load(tmp_path / "m.pt", weights_only=True)["optimizer"]
        assert_same_states(found["state"], expected["state"])
        assert found["param_groups"] == expected["param_groups"]
        with trimaran.init(job, record=False) as session:
            session.load(tmp_path / "m.pt", trust_pickle=True, optimizer=True)
            assert session.optimizer is not None
            now = session.optimizer.state_dict()
            assert_same_states(now["state"], expected["state"])
            assert now["param_groups"] == expected["param_groups"]
            assert not session.notes


def assert_same_states(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert found.keys() == expected.keys()
    for number, kept in expected.items():
        assert found[number].keys() == kept.keys()
        assert all(same_bits(found[number][key], one) for key, one in kept.items())


def _make(target: Path) -> Any:
    def make(*_: Any) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_text("mine")

    return make


def test_transformers_reads_what_was_exported(tmp_path: Path) -> None:
    """A small GPT-2 with its tied head: the same logits from the folder, which has the configuration of the model."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    job = trimaran.Job(
        model=lambda: transformers.GPT2LMHeadModel(config).eval(),
        loss=lambda output, target: nn.functional.cross_entropy(output.logits[:, -1], target),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        dataset=lambda: torch.utils.data.TensorDataset(torch.arange(64).view(8, 8) % 50, torch.arange(8)),
        global_batch_size=4,
    )
    with trimaran.init(job, record=False) as session:
        for batch in session.batches():
            session.step(batch)
        session.save_checkpoint(tmp_path / "checkpoints")
        weights = session.weights()
    for target, shard in (("hf", None), ("shards", 4000)):
        made = trimaran.export_checkpoint(tmp_path, tmp_path / target, to="huggingface", shard_bytes=shard)
        assert "config.json" in made.files
        assert len(made.files) > 4 if shard else made.files == ("config.json", "model.safetensors")
        model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / target)
        assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / target)) is type(model)
        assert model.lm_head.weight is model.transformer.wte.weight
        found = model.state_dict()
        assert found.keys() == weights.keys()
        assert all(same_bits(found[name], one) for name, one in weights.items())
        # What it writes is read again.
        model.save_pretrained(tmp_path / f"{target} again")
        with open_content(tmp_path / f"{target} again") as content:
            assert all(same_bits(content.read(name), weights[name]) for name in content.forms)


@pytest.mark.sweep
def test_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    """64 tensors of 4 MiB go from safetensors to a folder in a process that has room for few of them."""
    write_weights(
        {f"w{number}": torch.full((2**20,), float(number)) for number in range(64)}, tmp_path / "m.safetensors"
    )
    code = (
        "import sys, torch, trimaran, resource\n"
        "from trimaran.checkpoint_files import exports, imports\n"
        "import torch.distributed.checkpoint\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for to in ('safetensors', 'huggingface', 'dcp'):\n"
        "    trimaran.export_checkpoint(sys.argv[1], sys.argv[2] + to, to=to)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "m.safetensors"), str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * 1024  # KiB, of 256 MiB


def test_errors_are_ours(tmp_path: Path) -> None:
    """Bytes drawn at random under each name."""
    draw = random.Random(1)
    for number in range(60):
        path = tmp_path / f"{number}{draw.choice(('.pt', '.safetensors', '.bin', ''))}"
        path.write_bytes(draw.choice((b"PK\x03\x04", b"\x80\x02", b"")) + draw.randbytes(draw.randrange(200)))
        with pytest.raises(TrimaranError):
            open_content(path, trust_pickle=True)
