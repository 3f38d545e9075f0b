"""Files of published measurements: any order of columns, missing ones, times, and cells that are wrong."""

import re
from importlib import resources
from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.base.progress import ignore_progress
from trimaran_studies.published.rows import figure, published_rows, read_rows
from trimaran_studies.validation.validate import ValidationRequest, answer, validate


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, "unit,value,family,model,row_id\nimages/s,363.7,dp_throughput,resnet50,a1\n")
    (row,) = read_rows(path)
    assert (row.row_id, row.family, row.measured, row.unit) == ("a1", "dp_throughput", 363.7, "images/s")
    assert row.fields == {"model": "resnet50", "unit": "images/s"}


def test_a_row_without_an_id_is_known_by_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "family,value\ndp_throughput,1\ndp_throughput,2\n")
    assert [row.row_id for row in read_rows(path)] == ["2", "3"]


def test_only_the_rows_of_a_family_are_given(tmp_path: Path) -> None:
    path = written(tmp_path, "family,value\ndp_throughput,1\nsingle_gpu_time,2\npeak_memory,3\n")
    assert [row.measured for row in read_rows(path, family="single_gpu_time")] == [2.0]
    assert [row.family for row in read_rows(path, family="memory")] == ["peak_memory"]


def test_collectives_are_told_by_their_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "op,bytes,n_gpus,time_us,machine\nall_reduce,1048576,8,107.5,DGX-1\n")
    (row,) = read_rows(path)
    assert (row.family, row.measured, row.unit) == ("collectives", 107.5, "us")


def test_an_anchor_is_a_figure(tmp_path: Path) -> None:
    path = written(tmp_path, "family,value,anchor_value\ndp_throughput,700,100\ndp_throughput,700,\n")
    assert [row.anchor for row in read_rows(path)] == [100.0, None]


@pytest.mark.parametrize("cell", ["", "n/a", "OOM", "-"])
def test_a_row_without_a_figure_does_not_end_its_file(tmp_path: Path, cell: str) -> None:
    path = written(tmp_path, f"family,row_id,value\nmp_throughput,a,{cell}\nmp_throughput,b,5\n")
    first, second = read_rows(path, keeps_faulty=True)
    assert answer(first, anchor="none").skipped.startswith(f"{path}:2: ")
    assert second.measured == 5.0


@pytest.mark.parametrize(
    ("cell", "seconds"), [("1:02:03", 3723.0), ("12:30", 750.0), ("2 days 1:00:00", 176400.0), ("1,234.5", 1234.5)]
)
def test_times_and_thousands(cell: str, seconds: float) -> None:
    """1 h 2 min 3 s = 3600 + 120 + 3; 2 d 1 h = 2 x 86400 + 3600."""
    assert figure(cell) == seconds


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("family,value\ndp_throughput,fast\n", ":2: column value: "),
        ("family,value\ndp_throughput,1\ndp_throughput,-2\n", ":3: column value: "),
        ("family,value\ndp_throughput,1e999\n", ":2: column value: "),
        ("family,value,anchor_value\ndp_throughput,1,many\n", ":2: column anchor_value: "),
        ("family,value\n,1\n", ":2: column family: "),
        ("op,bytes,n_gpus,time_us\nall_reduce,big,8,1\n", ":2: column bytes: "),
        ("family,model\ndp_throughput,vgg16\n", ":1: column value: "),
        ("model,value\nvgg16,1\n", ":1: column family: "),
        ("family,value\ndp_throughput,1,2\n", ":2: more cells"),
    ],
)
def test_a_wrong_cell_is_named_by_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert caught.value.message.startswith(f"{path}{place}")


def test_a_row_of_others_with_a_wrong_cell_is_skipped_and_the_others_are_answered(tmp_path: Path) -> None:
    text = "family,value,unit,model,batch_per_gpu,gpu\n" + "".join(
        f"peak_memory,{value},MB,LeNet,64,\n" for value in ("12", "n/a", "13", "1e999")
    )
    path = written(tmp_path, text)
    answers = validate(ValidationRequest(files=(path,)), progress=ignore_progress)
    assert [answer.predicted is not None for answer in answers] == [True, False, True, False]
    assert answers[1].skipped.startswith(f"{path}:3: column value: ")
    assert answers[3].skipped.startswith(f"{path}:5: column value: ")
    with raises("rows.unreadable-cell", line=3):
        read_rows(path)


def test_a_family_that_is_not_one_is_refused(tmp_path: Path) -> None:
    with raises("rows.unknown-family", match="--family", family="speed"):
        read_rows(written(tmp_path, "family,value\n"), family="speed")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with raises("file.unreadable"):
        read_rows(tmp_path / "none.csv")


def test_collectives_in_the_columns_of_the_table(tmp_path: Path) -> None:
    """The same row as in the columns that tools print."""
    path = written(tmp_path, "op,bytes,n_gpus,value,unit,family\nall_reduce,1048576,8,107.5,us,collectives\n")
    (row,) = read_rows(path)
    (printed,) = read_rows(written(tmp_path, "op,bytes,n_gpus,time_us\nall_reduce,1048576,8,107.5\n"))
    assert row == printed


def test_results_in_the_columns_of_the_table(tmp_path: Path) -> None:
    """The same row as in the columns of a benchmark round, whose unit is that of the amount of training."""
    path = written(
        tmp_path,
        "benchmark,kind,global_batch,ttt_min,n_accelerators,accelerator,unit\n"
        "resnet,submission google 8xV100,2048,137.8,8,Tesla V100,epochs\n",
    )
    (row,) = read_rows(path)
    path = written(
        tmp_path,
        "family,metric,model,machine,global_batch,value,n_gpus,gpu,unit\n"
        "time_to_train,submitted result,resnet,google 8xV100,2048,137.8,8,Tesla V100,min\n",
    )
    assert read_rows(path) == (row,)
    assert (row.family, row.measured, row.unit) == ("time_to_train", 137.8, "min")


def test_a_file_of_other_columns_is_refused_with_the_place_of_ours(tmp_path: Path) -> None:
    with raises("rows.no-family", match="benchmarks/validation/README.md", column="family"):
        read_rows(written(tmp_path, "source,model,gpus,reserved_gib\ntorchtitan,Llama 3.1 8B,8,82.4\n"))


def test_the_table_that_comes_with_trimaran_has_the_columns_that_are_documented() -> None:
    text = (Path(__file__).parents[4] / "benchmarks/validation/README.md").read_text("utf-8")
    listed = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in re.findall(r"^\| `.*", text, re.MULTILINE)))
    with (Path(str(resources.files("trimaran_studies.published"))) / "rows.csv").open(encoding="utf-8") as file:
        assert set(file.readline().strip().split(",")) <= set(listed)


def test_rows_that_come_with_trimaran_have_names_of_their_own() -> None:
    """But for collectives, whose names are numbers within their source."""
    names = [(row.row_id, row.family, row.fields["source_repo"]) for row in published_rows()]
    assert len(set(names)) == len(names)


def test_counts_that_a_program_wrote_as_fractions(tmp_path: Path) -> None:
    path = written(tmp_path, "family,value,n_gpus,seq_len,model,config\ndp_throughput,1,8.0,384.0,resnet50 v1.0,2.5\n")
    (row,) = read_rows(path)
    assert row.fields == {"n_gpus": "8", "seq_len": "384", "model": "resnet50 v1.0", "config": "2.5"}


@pytest.mark.parametrize("column", ["ttt_min", "global_batch", "to_target_mean"])
def test_a_figure_without_bounds_is_refused_as_such(tmp_path: Path, column: str) -> None:
    """Also in columns that are read later; names of hexadecimal digits are no figures."""
    cells = {
        "row_id": "41e999",
        "anchor_row_id": "87e6415909",
        "benchmark": "resnet",
        "kind": "submission",
        "ttt_min": "5",
        "global_batch": "64",
    }
    given = cells | {column: "1e999"}
    path = written(tmp_path, f"{','.join(given)}\n{','.join(given.values())}\n")
    with raises("rows.bad-number", match="1e999", line=2, column=column):
        read_rows(path)
    path = written(tmp_path, f"{','.join(cells)}\n{','.join(cells.values())}\n")
    assert [row.row_id for row in read_rows(path)] == ["41e999"]
