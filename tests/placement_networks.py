"""Large networks to place, built op by op: what each reads, and about what a V100 would need for it.

    nas_cells      cells of five pairs of separable convolutions that read the two cells before them, as NASNet has them
    dense_net      layers that read everything before them in their block, as DenseNet-264 has them
    nested_u_net   a U-Net whose skips are themselves columns of residual blocks, as U-Net++ has them
    translation    encoder and decoder of LSTM layers with attention, written out over time, as GNMT has them
    two_towers     two encoders of unlike widths that read each other now and then, as two-stream networks have them

The time of an operation is the larger of its arithmetic at 7.5 TFLOP/s and its traffic at 600 GB/s, plus 5
microseconds, times a factor from 0.9 to 1.1 drawn by a seed: no two operations are alike, as no two measured ones are.
A backward takes twice the arithmetic of a convolution or a matrix product, and as long as the forward of anything else.
"""

import random
from collections.abc import Sequence

from trimaran.features.placement import profiled_problem
from trimaran.graph.profiled import ProfiledGraph, ProfiledNode
from trimaran.placement.problem import PlacementProblem

_FLOPS_PER_S = 7.5e12
_BYTES_PER_S = 600e9
_CALL_S = 5e-6
_FLOAT = 4


class _Network:
    """A graph in the making."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.nodes: list[ProfiledNode] = []
        self.edges: list[tuple[int, int]] = []
        self.shapes: list[tuple[int, ...]] = []
        self._draw = random.Random(seed)

    def add(
        self, op: str, reads: Sequence[int], shape: tuple[int, ...], *, flops: float = 0.0, parameters: float = 0.0
    ) -> int:
        """One operation.

        Args:
            op: its kind
            reads: operations before it
            shape: of its output
            flops: arithmetic of its forward
            parameters: how many it has

        Returns:
            Its number.
        """
        made = _FLOAT * _product(shape)
        read = sum(_FLOAT * _product(self.shapes[other]) for other in reads)
        factor = self._draw.uniform(0.9, 1.1)
        moved_s = (made + read) / _BYTES_PER_S
        forward_s = factor * (_CALL_S + max(flops / _FLOPS_PER_S, moved_s))
        backward_s = factor * (_CALL_S + max(2 * flops / _FLOPS_PER_S, moved_s))
        number = len(self.nodes)
        self.nodes.append(
            ProfiledNode(
                name=f"n{number}",
                op=op,
                forward_s=forward_s,
                backward_s=backward_s,
                activation_bytes=made,
                parameter_bytes=_FLOAT * parameters,
            )
        )
        self.edges += [(other, number) for other in reads]
        self.shapes.append(shape)
        return number

    def conv(self, read: int, channels: int, kernel: int, *, stride: int = 1, depthwise: bool = False) -> int:
        """A convolution of an image."""
        batch, inputs, side, _ = self.shapes[read]
        side = -(-side // stride)
        weights = inputs * kernel**2 * (1 if depthwise else channels)
        flops = 2.0 * batch * side**2 * weights
        return self.add("Conv2d", [read], (batch, channels, side, side), flops=flops, parameters=weights)

    def same(self, op: str, *reads: int) -> int:
        """An operation whose output is as large as its first input."""
        return self.add(op, reads, self.shapes[reads[0]])

    def joined(self, *reads: int) -> int:
        """Images one behind the other."""
        batch, _, side, _ = self.shapes[reads[0]]
        return self.add("Concat", reads, (batch, sum(self.shapes[other][1] for other in reads), side, side))

    def matmul(self, read: int, width: int) -> int:
        """A linear layer."""
        batch, inputs = self.shapes[read]
        flops = 2.0 * batch * inputs * width
        return self.add("Linear", [read], (batch, width), flops=flops, parameters=inputs * width)

    def done(self) -> ProfiledGraph:
        """The graph."""
        return ProfiledGraph(name=self.name, nodes=tuple(self.nodes), edges=tuple(dict.fromkeys(self.edges)))


def _product(shape: Sequence[int]) -> float:
    found = 1.0
    for size in shape:
        found *= size
    return found


def nas_cells(cells: int = 17, *, channels: int = 88, batch: int = 32, seed: int = 1) -> ProfiledGraph:
    """Cells of five pairs that read the two cells before them; three times the image is halved."""
    net = _Network("nas-cells", seed)
    draw = random.Random(seed + 100)
    stem = net.same("BatchNorm2d", net.conv(net.add("Input", [], (batch, 3, 112, 112)), channels // 2, 3, stride=2))
    before, last = stem, stem
    for cell in range(cells):
        halves = cell in (1, cells // 3 + 1, 2 * cells // 3 + 1)
        if halves:
            channels *= 2
        before, last = last, _cell(net, draw, before, last, channels, stride=2 if halves else 1)
    net.add("CrossEntropy", [net.matmul(net.add("AvgPool", [last], (batch, net.shapes[last][1])), 1000)], (batch, 1))
    return net.done()


def _cell(net: _Network, draw: random.Random, before: int, last: int, channels: int, *, stride: int) -> int:
    side = net.shapes[last][2]
    adapted = []
    for source in (before, last):
        shrink = net.shapes[source][2] // side
        adapted.append(net.same("BatchNorm2d", net.conv(net.same("ReLU", source), channels, 1, stride=shrink)))
    states, used = list(adapted), set[int]()
    for _ in range(5):
        pair = []
        for _ in range(2):
            source = draw.choice(states)
            used.add(source)
            step = stride if source in adapted else 1
            kind = draw.choice(("sep3", "sep5", "sep3", "sep5", "pool", "skip" if step == 1 else "pool"))
            if kind == "skip":
                pair.append(source)
            elif kind == "pool":
                side_out = -(-net.shapes[source][2] // step)
                pair.append(net.add("AvgPool", [source], (net.shapes[source][0], channels, side_out, side_out)))
            else:
                for turn in range(2):
                    source = net.same("ReLU", source)
                    kernel = int(kind[-1])
                    source = net.conv(source, channels, kernel, stride=step if turn == 0 else 1, depthwise=True)
                    source = net.same("BatchNorm2d", net.conv(source, channels, 1))
                pair.append(source)
        states.append(net.same("Add", *dict.fromkeys(pair)))
    return net.joined(*[state for state in states[2:] if state not in used])


def dense_net(
    blocks: Sequence[int] = (6, 12, 64, 48), *, growth: int = 32, batch: int = 32, seed: int = 2
) -> ProfiledGraph:
    """Layers that read everything before them in their block."""
    net = _Network("dense-net", seed)
    last = net.same("BatchNorm2d", net.conv(net.add("Input", [], (batch, 3, 112, 112)), 64, 7, stride=2))
    for number, layers in enumerate(blocks):
        made = [last]
        for _ in range(layers):
            source = net.joined(*made) if len(made) > 1 else made[0]
            source = net.conv(net.same("ReLU", net.same("BatchNorm2d", source)), 4 * growth, 1)
            made.append(net.conv(net.same("ReLU", net.same("BatchNorm2d", source)), growth, 3))
        last = net.same("ReLU", net.same("BatchNorm2d", net.joined(*made)))
        if number + 1 < len(blocks):
            halved = net.conv(last, net.shapes[last][1] // 2, 1)
            side = net.shapes[halved][2] // 2
            last = net.add("AvgPool", [halved], (batch, net.shapes[halved][1], side, side))
    net.add("CrossEntropy", [net.matmul(net.add("AvgPool", [last], (batch, net.shapes[last][1])), 1000)], (batch, 1))
    return net.done()


def nested_u_net(
    depth: int = 7, *, channels: int = 24, blocks: int = 4, batch: int = 8, seed: int = 3
) -> ProfiledGraph:
    """Columns of residual blocks: node (level, column) reads all before it on its level, and the one below."""
    net = _Network("nested-u-net", seed)
    image = net.add("Input", [], (batch, 3, 256, 256))
    made: dict[tuple[int, int], int] = {}
    for column in range(depth):
        for level in range(depth - column):
            width = channels * 2 ** min(level, 4)
            if column == 0:
                source = image if level == 0 else _pooled(net, made[level - 1, 0])
            else:
                below = made[level + 1, column - 1]
                batch_, inputs, side, _ = net.shapes[below]
                up = net.add("Upsample", [below], (batch_, inputs, 2 * side, 2 * side))
                source = net.joined(*(made[level, earlier] for earlier in range(column)), up)
            made[level, column] = _residual(net, source, width, blocks)
    net.add("CrossEntropy", [net.conv(made[0, depth - 1], 21, 1)], (batch, 1))
    return net.done()


def _pooled(net: _Network, source: int) -> int:
    batch, channels, side, _ = net.shapes[source]
    return net.add("MaxPool", [source], (batch, channels, side // 2, side // 2))


def _residual(net: _Network, source: int, width: int, blocks: int) -> int:
    source = net.same("ReLU", net.same("BatchNorm2d", net.conv(source, width, 3)))
    for _ in range(blocks):
        inner = net.same("ReLU", net.same("BatchNorm2d", net.conv(source, width, 3)))
        source = net.same("ReLU", net.same("Add", net.same("BatchNorm2d", net.conv(inner, width, 3)), source))
    return source


def translation(
    layers: int = 8, *, time_steps: int = 24, width: int = 1024, batch: int = 128, seed: int = 4
) -> ProfiledGraph:
    """Encoder and decoder of LSTM layers, written out over time; the decoder attends to the encoder."""
    net = _Network("translation", seed)
    tokens = [net.add("Embedding", [], (batch, width), parameters=width) for _ in range(time_steps)]
    for layer in range(layers):
        onwards = _lstm(net, tokens, width)
        if layer == 0:
            backwards = _lstm(net, tokens[::-1], width)[::-1]
            onwards = [net.same("Add", a, b) for a, b in zip(onwards, backwards, strict=True)]
        tokens = onwards if layer < 2 else [net.same("Add", a, b) for a, b in zip(onwards, tokens, strict=True)]
    keys = net.add("Stack", tokens, (batch, time_steps * width // 16))
    words = [net.add("Embedding", [], (batch, width), parameters=width) for _ in range(time_steps)]
    for layer in range(layers):
        words = _lstm(net, words, width)
        if layer == 0:
            words = [net.add("Attention", [word, keys], (batch, width)) for word in words]
    losses = [net.add("CrossEntropy", [net.matmul(word, 8 * width)], (batch, 1)) for word in words]
    net.add("Sum", losses, (1, 1))
    return net.done()


def _lstm(net: _Network, inputs: Sequence[int], width: int) -> list[int]:
    """One layer over time: a product of input and state, and the gates."""
    batch = net.shapes[inputs[0]][0]
    outputs: list[int] = []
    for read in inputs:
        reads = [read, outputs[-1]] if outputs else [read]
        flops = 2.0 * batch * len(reads) * width * 4 * width
        gates = net.add("Linear", reads, (batch, 4 * width), flops=flops, parameters=8 * width**2 / len(inputs))
        outputs.append(net.add("LSTMGates", [gates], (batch, width)))
    return outputs


def two_towers(blocks: int = 40, *, every: int = 4, batch: int = 16, seed: int = 5) -> ProfiledGraph:
    """Two chains of residual blocks of unlike widths; now and then the one is added to the other."""
    net = _Network("two-towers", seed)
    image = net.add("Input", [], (batch, 3, 128, 128))
    wide, narrow = net.conv(image, 96, 3, stride=2), net.conv(image, 64, 3, stride=2)
    for block in range(blocks):
        wide, narrow = _residual(net, wide, 96, 1), _residual(net, narrow, 64, 1)
        if block % every == every - 1:
            wide = net.same("Add", wide, net.conv(narrow, 96, 1))
    net.add("CrossEntropy", [net.conv(net.joined(wide, narrow), 10, 1)], (batch, 1))
    return net.done()


def on_two(graph: ProfiledGraph, *, devices: int = 2) -> PlacementProblem:
    """The question on devices joined by 25 GB/s each way, of any memory."""
    return profiled_problem(graph, devices=devices, bytes_per_s=25e9, latency_s=5e-6)
