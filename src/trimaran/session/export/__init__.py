"""A plan in the words of other runtimes: torchtitan, Megatron, accelerate."""
