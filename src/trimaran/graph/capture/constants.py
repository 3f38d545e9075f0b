"""What a graph has as constants: the values that the forwards of a model's containers read in Python.

A graph calls the leaf modules of a model, and has what containers compute around them as operations, with the values
that their attributes, and what else their methods hold, had at capture. Whoever changes `model.temperature`, or an
object of settings, between two steps changes nothing in it.
"""

from collections.abc import Collection
from typing import Any

from torch import nn

from trimaran.user_code.held_state import HeldState, Values, changed
from trimaran.user_code.model import hooks_of_user


class Constants:
    """What the containers of a model read.

    Args:
        model: the user's
        called: paths of the modules that the graph calls: they, and what is in them, run as they are
        rewritten: of these, paths of modules that do something else in the graph: neither their hooks nor
            their forwards are run
        modes: the graph follows the modes of the containers
    """

    def __init__(
        self, model: nn.Module, called: Collection[str], *, rewritten: Collection[str] = (), modes: bool = True
    ) -> None:
        named = {
            path: (f"session.model.{path}" if path else "session.model", one) for path, one in model.named_modules()
        }
        inside = dict(one for path, one in named.items() if not _is_in(path, called))
        self._held = HeldState(inside, undoable=False)
        # They are no constants, under whatever other name they are held.
        self._own = {id(one) for one in (*model.parameters(), *model.buffers())}
        self._before = self._values()
        self._buffers = [(f"{place}.{name}", module, name, one) for place, module in inside.items()
                         for name, one in module._buffers.items()]  # fmt: skip
        # A graph has the modules, and the hooks, of its capture.
        self._inside, self._modes = inside, modes
        self._rewritten = dict(one for path, one in named.items() if _is_in(path, rewritten))
        self._structure_before = self._structure()

    def take_over(self) -> list[str]:
        """Write to a buffer what somebody has put into its place, as in `model.scale = 0.9 * model.scale`.

        The graph has the buffer.

        Returns:
            What is another one now and cannot be taken over.
        """
        others = []
        for path, module, name, one in self._buffers:
            now = module._buffers.get(name)
            if now is one:
                continue
            if one is None or now is None or now.shape != one.shape or now.dtype != one.dtype:
                others.append(path)
                continue
            one.copy_(now.detach())
            module._buffers[name] = one
        return [*changed(self._before, self._values()), *others, *changed(self._structure_before, self._structure())]

    def _structure(self) -> Values:
        modules = {f"{place}.{name}": id(one) for place, module in self._inside.items()
                   for name, one in module._modules.items()}  # fmt: skip
        hooks = {f"the hooks of {place}": count_hooks(one) for place, one in (self._inside | self._rewritten).items()}
        forwards = {f"the forward of {place}": id(getattr(one.forward, "__func__", one.forward))
                    for place, one in self._rewritten.items()}  # fmt: skip
        own = {} if self._modes else {f"{place}.training": one.training for place, one in self._inside.items()}
        return {**modules, **hooks, **forwards, **own}

    def _values(self) -> Values:
        values = self._held.versions(functions=True)
        return {path: one for path, one in values.items() if not (isinstance(one, tuple) and one[0] in self._own)}


def count_hooks(module: nn.Module) -> int:
    """The hooks of a module that are the user's.

    Args:
        module: without its children
    """
    return sum(map(_is_others, hooks_of_user(module)))


def _is_in(path: str, modules: Collection[str]) -> bool:
    """Whether a module is one of some, or in one of them, by their paths."""
    return any(path == one or path.startswith(f"{one}.") for one in modules)


def _is_others(hook: Any) -> bool:
    """Whether a hook is none of ours, which comes and goes."""
    return not any(str(getattr(one, "__module__", "")).startswith("trimaran.") for one in (hook, type(hook)))
