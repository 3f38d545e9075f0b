"""The operations that treat every element by itself, by torch's names without variants."""

_NAMES = """
    abs add addcdiv addcmul alias alpha_dropout and __and__ __or__ bitwise_and bitwise_or bitwise_not bitwise_xor celu
    ceil clamp clamp_max clamp_min clone contiguous cos detach div dropout elu empty_like eq erf exp expm1 fill float
    floor floor_divide ge gelu gt hardsigmoid hardswish hardtanh isinf isnan le leaky_relu lerp lift_fresh_copy log
    log1p log_sigmoid logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum mish mul
    nan_to_num ne neg ones_like pow reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin
    softplus sqrt square sub tan tanh threshold to _to_copy true_divide type_as where zero zeros_like
"""

ELEMENTWISE = frozenset(_NAMES.split())
