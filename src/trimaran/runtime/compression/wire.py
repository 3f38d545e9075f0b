"""Compressed buckets on their way: the rounds of a codec, from the hooks of a backward to the update.

    backward   ████ b0 ╴e0╶ ████ b1 ╴q0 e1╶ ████ b2 ╴q1 e2╶│ wait, q2 │ decode │ update
    b0                 ═ P0 ═══      ═ Q0 ══
    b1                                  ═ P1 ════       ═ Q1 ══
    b2                                                     ═ P2 ══  ═ Q2 ══

A bucket is encoded (e) when it is complete, in the backward, and its first sum starts. Where a codec has a second
round, it starts when the next bucket is complete, after a wait for the first one, so that it too travels beside the
backward; that of the last bucket starts before the update. Decoding is done by whoever waits for the bucket.

So the order of all sums follows from the order of buckets alone, and is the same on every replica. Sums that start as
soon as their data are there would be a little earlier, and in another order on each rank.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from trimaran.program.types import Instruction, Kind
from trimaran.runtime.channels import Channels
from trimaran.runtime.compression.types import Codec, Round
from trimaran.runtime.pending import InFlight, Pending
from trimaran.runtime.record import Recorder
from trimaran.runtime.streams import Stamp
from trimaran.timeline import WAIT


class Wire:
    """Compressed buckets of one rank.

    Args:
        codec: of the job
        replicas: that add up
        channels: communicate
        in_flight: communication under way
        recorder: writes down what happened
    """

    def __init__(
        self, codec: Codec, *, replicas: int, channels: Channels, in_flight: InFlight, recorder: Recorder
    ) -> None:
        self._codec = codec
        self._replicas = replicas
        self._channels = channels
        self._in_flight = in_flight
        self._recorder = recorder
        self._unfinished: list[str] = []

    def start(self, instruction: Instruction, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Add up a bucket of gradients, nearly.

        Args:
            instruction: of the bucket
            flat: its gradients; the sum replaces them when somebody has waited for the instruction
            parameters: whose gradients they are, in order
        """
        self.go_on()
        start = self._recorder.stamp()
        rounds = self._codec.rounds(flat, parameters)
        first = next(rounds)
        posted = self._recorder.stamp()
        # It lies inside the backward.
        self._recorder.add(instruction.token, WAIT, start, posted)
        self._post(instruction, rounds, first, posted, 0)

    def go_on(self) -> None:
        """Start the next rounds of buckets that have more than one, waiting for those that are under way."""
        tokens, self._unfinished = dict.fromkeys(self._unfinished), []
        for token in tokens:
            self._in_flight.advance(token)

    def give_back(self, parameter: torch.Tensor, total: torch.Tensor) -> None:
        """Owe the sum of a parameter again, which nobody applies: no replica has used the parameter in this step.

        Args:
            parameter: of a bucket that was exchanged; its gradients were zeros, so the sum is of residuals only
            total: the sum over the replicas, the same on all
        """
        owed = self._codec.lost(parameter)
        if owed is not None:
            owed.add_(total.reshape(-1), alpha=1.0 / self._replicas)

    def _post(
        self, instruction: Instruction, rounds: Iterator[Round], now: Round, start: Stamp, sent_bytes: int
    ) -> None:
        work = self._channels.all_reduce(now.payload, instruction.group)
        nbytes = sent_bytes + now.payload.nbytes
        pending = Pending(
            token=instruction.token,
            nbytes=nbytes,
            works=[work],
            buffers=[now.payload],
            start=start,
            finish=partial(self._continue, instruction, rounds, start, nbytes),
        )
        if not now.is_last:
            self._unfinished.append(instruction.token)
        self._in_flight.add(pending, f"{instruction.kind} {instruction.group}", collective=True, stood_still=False)

    def _continue(self, instruction: Instruction, rounds: Iterator[Round], start: Stamp, sent_bytes: int) -> None:
        before = self._recorder.stamp()
        following = next(rounds, None)
        # Under the name of what the gradients are decoded for: of a transfer, the last wait tells who looked when.
        self._recorder.add(Kind.UPDATE, WAIT, before, self._recorder.stamp())
        if following is not None:
            self._post(instruction, rounds, following, start, sent_bytes)
