"""A training of a number of tokens: what failures make of the time of its steps, for plans and given strategies."""

from trimaran.base.errors import InputError
from trimaran.machine.find import find_machine
from trimaran.planner.choice import Option
from trimaran.planner.target_estimates import Contender, Runs
from trimaran.planner.target_search import contender_of
from trimaran.planning.analytical import checkpoint_bytes, decoder_shape
from trimaran.planning.answer.evidence import Outlook
from trimaran.planning.requests import PlanRequest
from trimaran.planning.target import Backend, Known, conclude, known_by_tokens
from trimaran.pricing.failures import Cluster, LongRun, long_run


def check_tokens(reference: str, request: PlanRequest) -> float:
    """Tokens of a sample where a training of tokens is asked for, else 0.

    Raises:
        InputError: a plan of this machine, or a job of which nothing says the tokens
    """
    if len(request.target.counts) > 1 and request.is_here:
        raise InputError(
            "--devices with several numbers compares parts of a target cluster: add --cluster, or give one number",
            code="tokens.counts-need-cluster",
        )
    if request.target.tokens is None:
        return 0.0
    if request.is_here:
        raise InputError(
            "--tokens asks how long a training takes on a target cluster: add --cluster (`trimaran catalog machines`)",
            code="tokens.needs-cluster",
        )
    shape = decoder_shape(reference, request)
    if shape is None:
        raise InputError(
            f"--tokens: {reference} is no decoder, so that nothing says how many tokens its samples have; ask for a "
            "decoder such as llama3:8b, or give --curve for the time to a target",
            code="tokens.not-a-decoder",
            reference=reference,
        )
    return float(shape.sequence) if request.documents is None else request.documents.useful(shape.sequence)


def runs_of(backend: Backend, known: Known) -> Runs | None:
    """What failures make of a training of tokens on the cluster of a backend."""
    if known.tokens is None:
        return None
    request = backend.request
    device = find_machine(request.cluster).node.device

    def run(contender: Contender, work_s: float) -> LongRun:
        cluster = Cluster(
            devices=contender.devices,
            node_devices=backend.node_devices,
            checkpoint_bytes=checkpoint_bytes(backend.source.reference, request, contender.origin.strategy),
            to_host_bytes_per_s=device.copies.to_host_bytes_per_s,
            reliability=request.target.reliability,
        )
        return long_run(work_s, cluster, step_s=contender.step_time_s)

    return run


def training_of_tokens(backend: Backend, option: Option, batch: int) -> Outlook:
    """The training of the tokens that a request asks for, by one strategy.

    Args:
        backend: that priced it, with the request
        option: the strategy with its costs
        batch: samples of one update

    Raises:
        InputError: a job of which nothing says the tokens, or a budget without a price
        InfeasibleError: failures leave no progress
    """
    target = backend.request.target
    sample_tokens = check_tokens(backend.source.reference, backend.request)
    known = known_by_tokens(target, sample_tokens=sample_tokens, job_batch=backend.batch)
    return conclude(
        [contender_of(option, batch)],
        asked="time",
        known=known,
        request=target,
        batches=(batch,),
        price=backend.price,
        node_devices=backend.node_devices,
        runs=runs_of(backend, known),
    )
