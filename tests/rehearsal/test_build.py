"""Which builds of torch stand in for a device: what their files say, then what a script makes of them."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from tests.commands.running import new_trimaran

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.system import SUPPORTED_TORCH
from trimaran.features.doctor import Check, examine
from trimaran.rehearsal import build

ROOT = Path(__file__).parents[2]


def files(folder: Path, version: str = "2.14.0+cu130", *, hip: str = "None", headers: bool = True) -> Path:
    """A torch that says what it is, brings the headers of the one here, and must not be imported."""
    made = folder / "torch"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text("raise SystemError('torch was imported')\n")
    (made / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = '13.0'\n"
        f"git_version = 'abc'\nhip: Optional[str] = {hip}\n"
    )
    here = build.find_build().folder / "include"
    for header in (*build._GUARD_HEADERS, *build._HOOKS_HEADERS) if headers else ():
        (made / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / header, made / "include" / header)
    return made


def test_this_torch_behaves_as_a_rehearsal_needs() -> None:
    assert build.tried() == ""


def test_the_range_and_the_release_that_is_tried_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest, newest) = (".".join(map(str, end)) for end in SUPPORTED_TORCH)
    after = f"{SUPPORTED_TORCH[1][0]}.{SUPPORTED_TORCH[1][1] + 1}"
    assert f"torch>={oldest},<{after}" in project["dependencies"]
    assert f"torch=={build.TRIED_TORCH}\n" in (ROOT / "constraints.txt").read_text()
    compat = (ROOT / "scripts" / "compat").read_text()
    assert "${TORCH:-" + f"{oldest}.0 {newest}.0" + "}" in compat


def test_a_build_for_cuda_that_is_supported_is_not_refused_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files(tmp_path)
    monkeypatch.setattr(build, "find_build", lambda: build.Build("2.14.0+cu130", "CUDA 13.0", made, "abc"))
    assert str(build.look_at_build()) == "torch 2.14.0+cu130 (CUDA 13.0)"


UNKNOWN = {
    "too old": ({"version": "2.10.1"}, "rehearse.torch-version"),
    "too new": ({"version": "2.16.0.dev20270101+cu140"}, "rehearse.torch-version"),
    "another major release": ({"version": "3.0.0"}, "rehearse.torch-version"),
    "no release": ({"version": "main"}, "rehearse.torch-version"),
    "for ROCm": ({"version": "2.13.0", "hip": "'7.1'"}, "rehearse.torch-build"),
    "without headers": ({"headers": False}, "rehearse.torch-unknown"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_one_that_is_not_known_is_refused_by_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, code = UNKNOWN[name]
    files(tmp_path, **options)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(EnvironmentProblem) as refused:
        build.check_build(tmp_path)
    assert "torch" not in sys.modules
    assert refused.value.code == code
    assert re.search(COMMANDS, refused.value.message)


COMMANDS = r"\n  python3\.\d+ -m venv (\S+)\n  \1/bin/pip install torch==2\.13\.0 \S+$"


def test_the_command_refuses_it_before_torch_is_imported_or_a_rank_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path / "site", "2.10.0")
    (tmp_path / "train.py").write_text("raise SystemExit('it was started')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    told = new_trimaran("rehearse", "--world", "2", "--", "train.py", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (4, "")
    assert re.search(COMMANDS, told.stderr.rstrip())
    assert "was imported" not in told.stderr
    assert "was started" not in told.stderr


def test_one_whose_tables_have_other_functions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = files(tmp_path)
    header = made / "include" / build._GUARD_HEADERS[0]
    header.write_text(header.read_text().replace("deviceCount", "numberOfDevices"))
    monkeypatch.setattr(build, "find_build", lambda: build.Build("2.14.0", "CPU", made, "abc"))
    with pytest.raises(EnvironmentProblem, match="do not declare deviceCount") as refused:
        build.look_at_build()
    assert refused.value.code == "rehearse.torch-unknown"


UNTRUE = {
    "a wrong answer": ("import sys; sys.exit('devices: 0, not 2')", "devices: 0, not 2"),
    "an error": ("raise RuntimeError('no kernel')", "RuntimeError: no kernel"),
    "a crash": ("import os; os.kill(os.getpid(), 11)", "its process ended with status -11"),
    "too few exchanges": ("", "the self-test's exchanges: 0 of ('all_reduce', 65792), not 2"),
}


@pytest.mark.usefixtures("_forked_rehearsals")
@pytest.mark.parametrize("name", UNTRUE)
def test_one_that_fails_the_self_test_is_refused_and_not_tried_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, wrong = UNTRUE[name]
    script = tmp_path / "self_test.py"
    script.write_text(text)
    monkeypatch.setattr(build, "_SELF_TEST", script)
    for _ in range(2):
        with pytest.raises(EnvironmentProblem, match="does not behave as a rehearsal needs") as refused:
            build.check_build(tmp_path)
        assert str(refused.value.figures["wrong"]).partition(" needs: ")[2].startswith(wrong)
        monkeypatch.setattr(build, "tried", lambda: pytest.fail("it was tried again"))


HEADERS = {
    "Base.h": """
        // virtual void none() const;
        struct Base {
          virtual ~Base() = default;
          /* virtual void none2(); */
          virtual bool built() const { return false; }
          virtual const std::vector<int>& list([[maybe_unused]] int at = -1) const = 0;
        };
    """,
    "Derived.h": """
        struct Derived : Base {
          ~Derived() override = default;
          bool built() const override { return true; }
#ifdef USE_ROCM
          virtual int ofRocm() const;
#endif
          virtual at::Stream
          getStream(at::Device) const noexcept = 0;
          virtual bool built() const override;
          virtual void* last(const Stream) const;
        };
    """,
}


def test_functions_stand_as_they_are_declared_with_those_of_the_base_ahead(tmp_path: Path) -> None:
    """By the C++ ABI: two places for a destructor; what overrides has the place of what it overrides."""
    for name, text in HEADERS.items():
        (tmp_path / name).write_text(text)
    places = build._declared(tmp_path, tuple(HEADERS))
    assert places == {"~Base": 0, "built": 2, "list": 3, "getStream": 4, "last": 5}


def said() -> Check:
    return next(check for check in examine() if check.name == "rehearsal")


def test_the_doctor_says_whether_scripts_are_rehearsed_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert said().verdict == "ok"
    monkeypatch.setattr(build, "find_build", lambda: build.Build("2.16.0", "CPU", tmp_path, ""))
    check = said()
    assert (check.verdict, check.detail) == ("missing", "a rehearsal runs on torch 2.11 to 2.15; this is 2.16.0")
    assert check.advice.count("\n  ") == 2
