"""What is known of the constants of pricing/kernels before the fit: a middle and how far from it one may go.

Names are those of constants.toml. A spread is of the logarithm; 0 keeps a constant as it is. Shares of bandwidth and
efficiencies are published ones (DeepBench, NeuSight, coconet's weight updates); years are those of cuDNN's releases;
what nothing is known of starts at 1 or at the order of magnitude that physics gives, with a wide spread.
"""

ARCHITECTURES = {
    # share of the peak that large products sustain on vector units and on tensor cores
    "kepler": (0.6, 0.3),
    "maxwell": (0.75, 0.3),
    "pascal": (0.9, 0.3),
    "volta": (0.93, 0.9),
    "turing": (0.9, 0.8),
    "ampere": (0.88, 0.85),
    "ga10x": (0.85, 0.8),
    "ada": (0.8, 0.8),
    "hopper": (0.74, 0.78),
    "blackwell": (0.7, 0.7),
    "cdna": (0.6, 0.5),
    "vega": (0.6, 0.3),
    "cpu": (0.1, 0.1),
    "other": (0.8, 0.8),
}
POWER = {"turing": (6e10, 6e11), "ga10x": (1.2e11, 5e11), "ada": (1.3e11, 6.5e11)}
"""FLOP a joule allows on vector units and tensor cores, where cards of an architecture are held back by it."""

_NO_LIMIT = 1e13

BANDWIDTH = {
    "convolution": 0.8, "product": 0.8, "attention": 0.7, "recurrent": 0.8, "normalization": 0.55, "pooling": 0.6,
    "softmax": 0.6, "embedding": 0.4, "reduction": 0.6, "elementwise": 0.85, "copy": 0.8, "optimizer": 0.8,
}  # fmt: skip

LIBRARIES = ("nn", "caffe", "clnn", "greentea", "convnet2", "chainer", "neon", "fbfft")
PASSES = ("forward", "input", "weight")

_KERNELS = {
    "sharpness": (3.0, 0.5),
    "launch": (1.0, 0.7),
    "tf32": (0.9, 0.15),
    "layout": (1.5, 0.5),
    "product.vector.intensity": (30.0, 0.7),
    "product.vector.depth": (60.0, 0.5),
    "product.vector.fill_s": (1e-6, 0.7),
    "product.vector.rounding": (0.3, 1.0),
    "product.tensor.intensity": (16.0, 1.0),
    "product.tensor.depth": (120.0, 0.5),
    "product.tensor.fill_s": (1e-6, 0.7),
    "product.tensor.rounding": (0.7, 1.0),
    "convolution.vector.intensity": (60.0, 0.7),
    "convolution.vector.depth": (20.0, 0.7),
    "convolution.vector.fill_s": (1e-6, 0.7),
    "convolution.vector.rounding": (0.5, 1.0),
    "convolution.vector.forward": (1.0, 0.5),
    "convolution.vector.input": (0.9, 0.5),
    "convolution.vector.weight": (0.9, 0.5),
    "convolution.tensor.intensity": (40.0, 1.0),
    "convolution.tensor.depth": (100.0, 0.7),
    "convolution.tensor.fill_s": (1e-6, 0.7),
    "convolution.tensor.rounding": (0.5, 1.0),
    "convolution.tensor.forward": (0.8, 0.5),
    "convolution.tensor.input": (0.7, 0.5),
    "convolution.tensor.weight": (0.7, 0.5),
    "convolution.strided": (0.3, 0.7),
    "growth.vector.forward": (0.7, 0.5),
    "growth.vector.input": (0.7, 0.5),
    "growth.vector.weight": (0.7, 0.5),
    "growth.vector.year": (2016.2, 0.0),
    "growth.vector.span": (0.5, 0.0),
    "growth.tensor.forward": (0.6, 0.5),
    "growth.tensor.input": (0.5, 0.5),
    "growth.tensor.weight": (0.3, 0.7),
    "growth.tensor.year": (2019.2, 0.0),
    "growth.tensor.span": (0.15, 0.0),
    "winograd.vector.small": (0.75, 0.5),
    "winograd.vector.large": (0.7, 0.5),
    "winograd.vector.wide": (0.7, 0.5),
    "winograd.tensor.small": (0.3, 0.5),
    "winograd.tensor.large": (0.4, 0.5),
    "winograd.tensor.wide": (0.4, 0.5),
    "winograd.small_year": (2016.3, 0.0),
    "winograd.large_year": (2016.6, 0.0),
    "winograd.wide_year": (2017.1, 0.0),
    "fft.efficiency": (0.5, 0.5),
    "fft.year": (2015.6, 0.0),
    "recurrent.vector": (0.8, 0.5),
    "recurrent.tensor": (0.6, 0.5),
    "recurrent.weights": (1.5, 0.5),
    "recurrent.step_s": (5e-6, 0.7),
    "recurrent.slow": (2.5, 0.5),
    "recurrent.year": (2018.2, 0.0),
}
_FRAMEWORKS = {
    "host.other": (9e-6, 0.5),
    "host.pytorch": (9e-6, 0.5),
    "host.tensorflow": (9e-6, 0.5),
    "host.mxnet": (2e-5, 0.5),
    "host.torch7": (9e-6, 0.5),
    "host.compiled": (0.4, 0.4),
    "overlap.other": (2.0, 0.4),
    "overlap.pytorch": (2.0, 0.4),
    "overlap.tensorflow": (2.0, 0.4),
    "overlap.mxnet": (1.0, 0.0),  # its engine waits for a device's stream after each operator
    "traffic.other": (1.0, 0.2),
    "traffic.pytorch": (1.0, 0.2),
    "traffic.tensorflow": (1.0, 0.2),
    "traffic.mxnet": (1.0, 0.2),
    "traffic.torch7": (1.0, 0.2),
    "traffic.compiled": (0.6, 0.2),
    "traffic.channels_last": (0.8, 0.2),
    "composite.other": (1.3, 0.3),
    "composite.pytorch": (1.0, 0.2),
    "composite.tensorflow": (3.0, 0.4),
    "composite.mxnet": (1.2, 0.3),
    "composite.mindspore": (2.0, 0.4),
}
SPREADS = {
    "spread.device": 0.10,
    "spread.unknown_device": 0.20,
    "spread.network": 0.11,
    "spread.software": 0.10,
    "spread.unknown_software": 0.20,
    "spread.anchor": 0.03,
}
"""Parts of the error of a step whose device, network or framework was not fitted; together as the cross-validation."""


def priors() -> dict[str, tuple[float, float]]:
    """Middle and spread of every constant."""
    found = dict(_KERNELS) | dict(_FRAMEWORKS)
    for kind, share in BANDWIDTH.items():
        found[f"memory.{kind}"] = (share, 0.05 if kind == "elementwise" else 0.12)
    for name, (vector, tensor) in ARCHITECTURES.items():
        limits = POWER.get(name, (_NO_LIMIT, _NO_LIMIT))
        found |= {
            f"architecture.{name}.vector": (vector, 0.15),
            f"architecture.{name}.tensor": (tensor, 0.15),
            f"architecture.{name}.memory": (1.0, 0.05),
            f"architecture.{name}.convolution": (1.0, 0.15),
            f"architecture.{name}.vector_per_j": (limits[0], 0.3 if name in POWER else 0.0),
            f"architecture.{name}.tensor_per_j": (limits[1], 0.3 if name in POWER else 0.0),
        }
    for library in LIBRARIES:
        found |= {f"library.{library}.{part}": (1.0, 0.7) for part in PASSES}
    return found
