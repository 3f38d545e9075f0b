"""Whether an import is expected to fail where it stands."""

import textwrap
import types

import pytest

from trimaran.rehearsal.device.absent import _CATCHING, KernelFunction, _Config, _decorator
from trimaran.rehearsal.device.handlers import names_caught


def importing(text: str) -> tuple[types.CodeType, int]:
    """The code of a module, and where in it the import is."""
    import dis

    code = compile(textwrap.dedent(text), "script.py", "exec")
    (at,) = [
        one.offset for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME" and one.argval == "package"
    ]
    return code, at


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import package\nexcept ImportError:\n    package = None",
        "try:\n    from package import part\nexcept (ImportError, OSError):\n    part = None",
        "try:\n    import package\nexcept Exception as error:\n    print(error)",
        "try:\n    import package\nexcept:\n    pass",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import package",
    ],
)
def test_an_import_whose_failure_is_caught(text: str) -> None:
    assert names_caught(*importing(text)) & _CATCHING


@pytest.mark.parametrize(
    "text",
    [
        "import package",
        "try:\n    import package\nfinally:\n    pass",
        "try:\n    import package\nexcept KeyError:\n    pass",
        "try:\n    pass\nexcept ImportError:\n    import package",
    ],
)
def test_an_import_whose_failure_ends_the_script(text: str) -> None:
    assert not names_caught(*importing(text)) & _CATCHING


def test_decorators_keep_what_they_decorate_with_and_without_arguments() -> None:
    jit = _decorator(KernelFunction)

    def kernel(x: int, block: int) -> int:
        return x * block

    for made in (jit(kernel), jit(num_warps=4)(kernel), jit(jit(kernel))):
        assert isinstance(made, KernelFunction)
        assert made.fn is kernel
        assert made.arg_names == ["x", "block"]
    assert _Config({"BLOCK": 64}, num_warps=8).all_kwargs() == {"BLOCK": 64, "num_warps": 8, "num_stages": 3}
