"""A training loop as one writes it by hand, for the same job: what the runtime is compared with.

It shares nothing with the runtime but the job. Page-locked batches, copies that do not wait, gradients set to None, the
optimizer's own fused or grouped kernels, and, where asked for, torch.compile over the model.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from trimaran.base.job import Job
from trimaran.user_code.batches import call_model, move_batch, split_batch


class PlainLoop:
    """The loop, step by step.

    Args:
        job: of one device, its batch the global one
        device: "cpu" or "cuda:<n>"
        compiled: run the model through torch.compile
    """

    def __init__(self, job: Job, device: str, *, compiled: bool) -> None:
        torch.manual_seed(job.seed)
        model: nn.Module = job.model().to(device)
        self.model: Any = torch.compile(model) if compiled else model
        self._job = job
        self._device = device
        self._on_gpu = device != "cpu"
        self._optimizer = job.optimizer(model.parameters())
        self._schedule = job.lr_schedule(self._optimizer) if job.lr_schedule is not None else None
        self._batches = self._endless()

    def step(self, *, wait: bool) -> float | None:
        """One step.

        Args:
            wait: read the loss at its end, as a loop does that logs it; else the host runs ahead of the device
        """
        return self._train(next(self._batches), wait=wait)

    def issue_share(self) -> float:
        """Share of a step, its load left out, for which the host is busy giving the device its work [0..1].

        Near 1, the device waits for the host: the step is bound by launches.
        """
        batch = next(self._batches)
        self.synchronize()
        start_s = time.perf_counter()
        self._train(batch, wait=False)
        issued_s = time.perf_counter()
        self.synchronize()
        return (issued_s - start_s) / (time.perf_counter() - start_s)

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def _train(self, batch: Any, *, wait: bool) -> float | None:
        self.model.train()
        batch = move_batch(batch, self._device)
        with self._autocast():
            loss = self._loss(call_model(self._job, self.model, batch), batch)
        loss.backward()
        if self._job.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._job.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._schedule is not None:
            self._schedule.step()
        return loss.item() if wait else None

    def _loss(self, output: Any, batch: Any) -> torch.Tensor:
        if self._job.loss is None:
            return output.loss
        value = self._job.loss(output, split_batch(batch)[2])
        return value[0] / value[1] if isinstance(value, tuple) else value

    def _autocast(self) -> Any:
        if self._job.precision == "bf16":
            return torch.autocast(torch.device(self._device).type, dtype=torch.bfloat16)
        return nullcontext()

    def _endless(self) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            self._job.dataset(),
            batch_size=self._job.global_batch_size,
            shuffle=True,
            drop_last=True,
            collate_fn=self._job.collate,
            pin_memory=self._on_gpu,
        )
        return itertools.chain.from_iterable(itertools.repeat(loader))
