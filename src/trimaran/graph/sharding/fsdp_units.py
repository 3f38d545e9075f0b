"""Which modules are gathered and freed as one when the parameters of a model are sharded.

A library that shards parameters gathers those of a module when its forward begins, and frees them when it ends. Large
modules need much memory while they are gathered, and small ones cost a message each. From the root of the model down,
a module is a unit if it is one of several alike (the blocks of a transformer), or small compared with the whole model,
or has no parts. What is smaller than the minimum stays with the root, which is gathered for the whole step.

Everything is found from the paths of modules and the shapes of parameters; classes are not known here. A module is no
unit where that could fail: it runs several times, other modules use its parameters, or it may be a mere list of
modules, which nobody calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.graph.types import Graph, Op, Parameter, parameter_use

MIN_UNIT_BYTES = 2**20
"""Modules with fewer bytes of parameters stay with the root [bytes]. A gather costs some tens of microseconds for its
messages alone, in which a link of PCI Express 3.0 x16 moves about this much."""

MAX_UNIT_SHARE = 1 / 8
"""Share of the parameters of a model up to which a module is a unit although there is none like it."""


def sharding_units(graph: Graph, *, min_bytes: int = MIN_UNIT_BYTES) -> tuple[str, ...]:
    """The modules that are gathered as one, in the order of the forward.

    Args:
        graph: the network
        min_bytes: modules with fewer bytes of parameters are left to the root [bytes]

    Returns:
        Their paths; none lies inside another. Empty: the root alone, as where a unit may have no backward on some
        replica.
    """
    if parameter_use(graph) == "varies":
        return ()
    modules = _modules(graph)
    limit = MAX_UNIT_SHARE * sum(parameter.nbytes for parameter in graph.parameters)
    found: list[_Module] = []
    pending = list(modules[""].children)
    while pending:
        module = modules[pending.pop()]
        if module.is_eligible and (module.alike or not module.children or module.nbytes <= limit):
            if module.nbytes >= min_bytes:
                found.append(module)
        else:
            pending.extend(module.children)
    return tuple(module.path for module in sorted(found, key=lambda module: module.first))


def is_inside(path: str, unit: str) -> bool:
    """Whether a module, or a parameter, belongs to a unit.

    Example:
        >>> is_inside("blocks.1.mlp", "blocks.1"), is_inside("blocks.10", "blocks.1"), is_inside("head", "head")
        (True, False, True)
    """
    return path == unit or path.startswith(f"{unit}.")


def unit_ops(ops: Sequence[Op], units: Sequence[str]) -> dict[str, list[int]]:
    """Where the operations of each unit stand, for the units that have some.

    Args:
        ops: operations in the order of the forward
        units: paths of modules, of which none lies inside another

    Returns:
        Positions in `ops`, ascending, by unit; units in the order of the forward.
    """
    known = set(units)
    found: dict[str, list[int]] = {}
    for position, op in enumerate(ops):
        unit = next((path for path in _ancestors(op.module) if path in known), None)
        if unit is not None:
            found.setdefault(unit, []).append(position)
    return found


def unit_parameters(graph: Graph, units: Sequence[str]) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of each unit, and of the root under an empty path, in the order of the graph.

    Args:
        graph: the network
        units: paths of modules, of which none lies inside another
    """
    known = set(units)
    found: dict[str, list[Parameter]] = {"": [], **{unit: [] for unit in units}}
    for parameter in graph.parameters:
        path = next((path for path in _ancestors(_owner(parameter.name)) if path in known), "")
        found[path].append(parameter)
    return {path: tuple(parameters) for path, parameters in found.items()}


@dataclass(slots=True, kw_only=True)
class _Module:
    """A module of the model, as far as the graph tells.

    Attributes:
        path: of it
        children: paths of its parts that have parameters
        nbytes: of the parameters inside [bytes]
        first: position of its first operation
        is_eligible: it runs once, as one, and nobody else uses its parameters
        alike: another part of the same module has parameters of the same names and shapes
    """

    path: str
    children: list[str]
    nbytes: int = 0
    first: int = -1
    is_eligible: bool = False
    alike: bool = False


def _modules(graph: Graph) -> Mapping[str, _Module]:
    modules: dict[str, _Module] = {"": _Module(path="", children=[])}
    forms: dict[str, list[object]] = {}
    for parameter in graph.parameters:
        for path in _ancestors(_owner(parameter.name)):
            if path not in modules:
                modules[path] = _Module(path=path, children=[])
            modules[path].nbytes += parameter.nbytes
            inner = parameter.name.removeprefix(f"{path}.")
            forms.setdefault(path, []).append((inner, parameter.shape, parameter.dtype, parameter.trainable))
    for path in modules:
        if path:
            modules[path.rpartition(".")[0]].children.append(path)
    _mark_eligible(graph, modules)
    for module in modules.values():
        groups: dict[object, list[_Module]] = {}
        for path in module.children:
            # What has no parts is one operation: two layers of the same shape make no block.
            if modules[path].children:
                groups.setdefault(tuple(forms[path]), []).append(modules[path])
        for group in groups.values():
            for child in group:
                child.alike = len(group) > 1
    return modules


def _mark_eligible(graph: Graph, modules: Mapping[str, _Module]) -> None:
    refused: set[str] = set()
    called: set[str] = set()
    for position, op in enumerate(graph.ops):
        inside = tuple(_ancestors(op.module))
        called.add(op.module)
        for path in inside:
            if path in modules and modules[path].first < 0:
                modules[path].first = position
        if "@" in op.id:
            refused.update(inside)
        for name in op.parameters:
            refused.update(path for path in _ancestors(_owner(name)) if path not in inside)
    for parameter in graph.parameters:
        for name in parameter.aliases:
            refused.update(path for path in _ancestors(_owner(parameter.name)) if not is_inside(name, path))
            refused.update(path for path in _ancestors(_owner(name)) if not is_inside(parameter.name, path))
    for path, module in modules.items():
        # Parts with numbers for names may be those of a list, whose forward nobody calls.
        listed = all(child.rpartition(".")[2].isdigit() for child in module.children) and module.children
        module.is_eligible = bool(path and path not in refused and module.first >= 0 and (path in called or not listed))


def _ancestors(path: str) -> list[str]:
    """A path and all that contain it but the root, from the inside.

    Example:
        >>> _ancestors("blocks.1.mlp")
        ['blocks.1.mlp', 'blocks.1', 'blocks']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _owner(parameter: str) -> str:
    """Path of the module that has a parameter."""
    return parameter.rpartition(".")[0]
