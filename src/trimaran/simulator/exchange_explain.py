"""Which layers a step waits for: gradients that are complete too late, or too large, to be exchanged in time."""

from collections.abc import Sequence
from dataclasses import replace

from trimaran.costs.scaled import ExposedGradient
from trimaran.simulator.exchange_calls import Ready
from trimaran.simulator.exchange_clock import Exchanged
from trimaran.simulator.exchange_run import Exchange

_EXAMINED = 8
_SHORTEST = 0.002


def exposed_gradients(exchange: Exchange, gradients: Sequence[Ready], done: Exchanged) -> tuple[ExposedGradient, ...]:
    """Layers that the step waits for, the longest wait first.

    A layer's wait is what goes away if its gradients cost nothing, the others being exchanged as before: the largest
    layers are tried one after another.

    Args:
        exchange: how gradients are exchanged
        gradients: all of them
        done: what became of them
    """
    if done.exposed_s <= 0.0:
        return ()
    layers = _by_layer(exchange, gradients)
    ends = {place: span.end_s for call, span in zip(done.calls, done.spans, strict=True) for place in call.gradients}
    before_s = exchange.estimate.forward.seconds * exchange.options.accumulation
    before_s += exchange.estimate.backward.seconds * (exchange.options.accumulation - 1)
    found = []
    for module in sorted(layers, key=lambda module: -_nbytes(layers[module]))[:_EXAMINED]:
        own = {ready.gradient for ready in layers[module]}
        without = [replace(ready, nbytes=1) if ready.gradient in own else ready for ready in gradients]
        saved_s = done.end_s - exchange.run(without).end_s
        if saved_s > _SHORTEST * done.end_s:
            found.append(
                ExposedGradient(
                    module=module,
                    nbytes=_nbytes(layers[module]),
                    ready_s=before_s + max(ready.ready_s for ready in layers[module]),
                    done_s=before_s + max(ends[place] for place in own),
                    exposed_s=saved_s,
                )
            )
    return tuple(sorted(found, key=lambda layer: -layer.exposed_s))


def _by_layer(exchange: Exchange, gradients: Sequence[Ready]) -> dict[str, list[Ready]]:
    layers: dict[str, list[Ready]] = {}
    for ready in gradients:
        layers.setdefault(exchange.workload.gradients[ready.gradient].module, []).append(ready)
    return layers


def _nbytes(layer: Sequence[Ready]) -> int:
    return sum(ready.nbytes for ready in layer)
