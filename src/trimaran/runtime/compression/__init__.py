"""Gradients made smaller on their way between replicas: `Strategy.compression`, executed.

A codec turns a bucket into rounds of sums over the replicas and the sums back into the bucket; it communicates nothing,
so that it can be measured and tested in one process. `Wire` runs its rounds for the buckets of a backward.

Why not torch's own communication hooks (`default_hooks`, `powerSGD_hook`):

- they hand DDP a future that DDP waits for at the end of the backward; here nobody waits before the update;
- their work between the sums runs in callbacks, on gloo's threads, beside the backward and for the same lock of the
  interpreter. Those of PowerSGD start an all-reduce and wait for it there: on each rank in the order in which its
  callbacks happen to run, and on a group with two workers two such callbacks leave nobody to run what they wait for;
- they average, and gradients here are sums (`losses`); those that round keep no error;
- PowerSGD's state belongs to numbers of buckets, so it must sit out the first steps, in which DDP changes them.
"""

from trimaran.runtime.compression.codecs import open_codec
from trimaran.runtime.compression.sizes import wire_bytes
from trimaran.runtime.compression.types import Codec, Round
from trimaran.runtime.compression.wire import Wire

__all__ = ["Codec", "Round", "Wire", "open_codec", "wire_bytes"]
