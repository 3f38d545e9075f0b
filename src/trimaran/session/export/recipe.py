"""What a plan decided, in the words that training runtimes share: degrees, stages, schedule, microbatches, recompute.

A recipe is what a plan and its graph say, before any runtime is asked what it can take. Paths of modules are those of
the user's model.
"""

from dataclasses import dataclass
from typing import Literal

from trimaran.program.types import Schedule

Recompute = Literal["none", "selective", "full"]
"""Which activations are computed again: none, what the runtime finds cheap, or whole layers."""

Precision = Literal["fp32", "bf16", "fp16", "fp64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One segment of a pipeline.

    Attributes:
        modules: paths of the outermost modules that lie in it, in order of execution
        layers: how many of them are repeated layers, such as transformer blocks
        split: paths of modules that the cut before or after it goes through
    """

    modules: tuple[str, ...]
    layers: int
    split: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a runtime has to be told.

    Attributes:
        job: reference of the job
        dp: data-parallel replicas
        tp: ranks that share the tensors of a layer
        pp: pipeline stages, or the rows of a placement
        cp: ranks that share a sequence
        chunks: segments of a stage
        schedule: order of forwards and backwards in a pipeline
        zero: what is sharded over the replicas: nothing, optimizer state, gradients too, parameters too
        sequence_parallel: norms and dropouts are split along the sequence over the ranks of a tensor-parallel group
        stages: one a segment, in order; empty where they are not known
        microbatch_size: samples of a microbatch
        microbatches: of a replica, in one step
        global_batch_size: samples of one update
        sequence_length: tokens of a sample, where samples are sequences
        precision: of the job
        recompute: which activations are computed again
        recompute_layers: layers of a stage that are computed again, where it is not all of them
        bucket_bytes: size at which gradients are sent [bytes]; None: not decided
        clip_norm: gradients are clipped to this norm; None: they are not
        compiled: segments run through torch.compile
        beyond: what was decided that no recipe can say, each with what it costs to leave it out
    """

    job: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    chunks: int = 1
    schedule: Schedule = "1f1b"
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    stages: tuple[Stage, ...] = ()
    microbatch_size: int
    microbatches: int = 1
    global_batch_size: int
    sequence_length: int | None = None
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    recompute_layers: int | None = None
    bucket_bytes: int | None = None
    clip_norm: float | None = None
    compiled: bool = False
    beyond: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Ranks that take part."""
        return self.dp * self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A recipe as one runtime takes it.

    Attributes:
        target: name of the runtime
        release: the release whose options these are
        file_name: what the file is usually called
        text: content of the file
        sections: the same as values, by section of the runtime's configuration
        next: what to do with the file
        lost: what the plan says and the runtime cannot be told, or is told in other words
    """

    target: str
    release: str
    file_name: str
    text: str
    sections: dict[str, dict[str, object]]
    next: str
    lost: tuple[str, ...]
