"""The validation as a person runs it: a file of rows, its JSON, tables, and files that are wrong."""

import json
from pathlib import Path
from typing import NoReturn

import pytest
from tests.commands.running import trimaran

from trimaran.cli import app
from trimaran_studies.validation import validate as validation

HEADER = (
    "row_id,family,source_repo,framework,model,precision,machine,gpu,n_gpus,batch_per_gpu,metric,value,unit,"
    "anchor_value"
)
LAMBDA = "lambdal/lambda-tensorflow-benchmark"
ROWS = (
    f"a1,dp_throughput,{LAMBDA},TensorFlow,alexnet,FP32,DGX-1,V100,8,64,throughput,9000,images/s,1500",
    f"a2,dp_throughput,{LAMBDA},TensorFlow,alexnet,FP32,DGX-1,V100,1,64,throughput,1500,images/s,",
    "a3,dp_throughput,somewhere,PyTorch,no such network,FP32,DGX-1,V100,8,64,throughput,1,images/s,",
    "a4,single_gpu_time,jcjohnson/cnn-benchmarks,Torch7; cudnn 5105,alexnet,FP32,,GTX 1080,1,16,time_forward,5,ms,",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join((HEADER, *ROWS)) + "\n", encoding="utf-8")
    return path


def test_a_file_in_json(data: Path, tmp_path: Path) -> None:
    """With an anchor of 1500 images/s, eight devices make at most 12,000 and, on NVLink, more than half of that."""
    done = trimaran("validate", "--data", str(data), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema_version"
    scaled, alone, unknown, forward = document["rows"]
    assert 6000 < scaled["predicted"] < 12_000
    assert scaled["interval"][0] < scaled["predicted"] < scaled["interval"][1]
    assert scaled["error"] == pytest.approx(scaled["predicted"] / 9000 - 1)
    assert scaled["baselines"]["linear"] == 12_000
    assert alone["predicted"] > 0
    assert "no such network" in unknown["skipped"]
    assert forward["predicted"] > 0
    assert document["summary"]["dp_throughput"]["all"]["answered"] == 2


def test_plans_of_a_job_have_a_regret(tmp_path: Path) -> None:
    """Two jobs of one plan each, and one of two plans: whatever we choose costs 1 or 300 / 200 of the best."""
    path = tmp_path / "plans.csv"
    header = "row_id,family,source_repo,framework,model,machine,gpu,n_gpus,global_batch,seq_len,tp,pp,dp,micro_batch"
    same = "VIA-Research/vTrain,Megatron-DeepSpeed,GPT h2048 L20,single-node 8xA100,A100"
    plans = ("p1,8,16,1024,1,1,8,1,ms,200", "p2,8,16,1024,8,1,1,2,ms,300", "p3,8,32,1024,1,1,8,1,ms,380")
    lines = []
    for line in plans:
        row_id, rest = line.split(",", 1)
        lines.append(f"{row_id},mp_step_time,{same},{rest}")
    path.write_text("\n".join((f"{header},unit,value", *lines)) + "\n", encoding="utf-8")
    done = trimaran("validate", "--data", str(path), "--family", "mp_step_time", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    regret = json.loads(done.stdout)["regret"]
    assert (regret["jobs"], regret["jobs_of_one_plan"]) == (1, 1)
    (job,) = regret["by_job"]
    assert job["regret"] == job["chosen"]["measured"] / 200
    assert job["rule_of_thumb"]["plan"] == "tp1 pp1 dp8 mb1"
    assert regret["rule_of_thumb"]["median"] == 1.0
    shown = trimaran("validate", "--data", str(path), "--family", "mp_step_time", cwd=tmp_path)
    assert "Regret of published plans" in shown.stdout


def test_only_a_family_without_anchors(data: Path, tmp_path: Path) -> None:
    done = trimaran(
        "validate", "--data", str(data), "--family", "single_gpu_time", "--anchor", "none", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["row_id"] for row in document["rows"]] == ["a4"]
    assert document["anchor"] == "none"


@pytest.mark.parametrize("option", [("--anchor", "none"), ("--sizes",)])
def test_an_option_that_changes_no_row_is_refused(option: tuple[str, ...], tmp_path: Path) -> None:
    done = trimaran("validate", "--family", "peak_memory", *option, "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "validate.unused-option"


def test_tables_for_people(data: Path, tmp_path: Path) -> None:
    done = trimaran("validate", "--data", str(data), "--rows", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dp_throughput" in done.stdout
    assert "skipped" in done.stdout
    assert "rule: linear" in done.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model,value\nvgg16,1\n", ":1: column family"),
        ("family,model\ndp_throughput,vgg16\n", ":1: column value"),
    ],
)
def test_a_wrong_file_ends_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text, encoding="utf-8")
    done = trimaran("validate", "--data", str(path), cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_row_with_a_wrong_cell_is_left_out_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("family,value\ndp_throughput,quick\n", encoding="utf-8")
    done = trimaran("validate", "--data", str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ":2: column value" in done.stdout.replace("\n", " ").replace("  ", " ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = trimaran("validate", "--data", "none.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be read" in done.stderr


def test_a_fault_of_the_predictor_fails(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 with the row; the whole traceback where TRIMARAN_DEBUG is set."""

    def failing(*_: object, **__: object) -> NoReturn:
        raise TypeError("planted")

    monkeypatch.setattr(validation, "row_step", failing)
    for debug in ("", "1"):
        monkeypatch.setenv("TRIMARAN_DEBUG", debug)
        with pytest.raises(SystemExit) as ended:
            app(["validate", "--data", str(data)], standalone_mode=False)
        assert ended.value.code == 1
        told = capsys.readouterr().err
        assert "a1" in told
        assert "TypeError: planted" in told
        assert ("Traceback" in told) == bool(debug)
