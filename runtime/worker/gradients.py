"""The run's own gradient reduction: a hashed bucket plan, overlapped with backward."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.errors import UsageError
from runtime.worker import points
from runtime.worker.group import Sum

BUCKET_BYTES = 4 << 20
# Gloo sums no 16-bit integers (torch 2.13).
_UNSENDABLE = (torch.int16,)


@dataclass(frozen=True)
class Bucket:
    """Parameters, by index into the plan's list, whose gradients travel in one flat buffer."""

    indices: tuple[int, ...]
    numel: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Plan:
    """Which gradients travel together and in which order: a pure function of the parameters."""

    buckets: tuple[Bucket, ...]
    digest: str


def plan_buckets(parameters: list[tuple[str, torch.nn.Parameter]], size: int) -> Plan:
    """Buckets in reverse parameter order (about that of backward), `size` bytes each."""
    buckets: list[Bucket] = []
    indices: list[int] = []
    for index in reversed(range(len(parameters))):
        parameter = parameters[index][1]
        if indices and not _fits(parameters, indices, parameter, size):
            buckets.append(_bucket(parameters, indices))
            indices = []
        indices.append(index)
    if indices:
        buckets.append(_bucket(parameters, indices))
    text = "\n".join(
        f"{number} {parameters[index][0]} {tuple(parameters[index][1].shape)} {bucket.dtype}"
        for number, bucket in enumerate(buckets)
        for index in bucket.indices
    )
    return Plan(tuple(buckets), hashlib.sha256(text.encode()).hexdigest())


def _fits(
    parameters: list[tuple[str, torch.nn.Parameter]],
    indices: list[int],
    parameter: torch.nn.Parameter,
    size: int,
) -> bool:
    first = parameters[indices[0]][1]
    held = sum(parameters[index][1].numel() for index in indices)
    return (
        first.dtype == parameter.dtype
        and first.device == parameter.device
        and (held + parameter.numel()) * parameter.element_size() <= size
    )


def _bucket(parameters: list[tuple[str, torch.nn.Parameter]], indices: list[int]) -> Bucket:
    first = parameters[indices[0]][1]
    numel = sum(parameters[index][1].numel() for index in indices)
    return Bucket(tuple(indices), numel, first.dtype, first.device)


def wait_all(pending: list[Sum]) -> bool:
    """Waits for every sum, also after one has failed: each holds the group's sockets open."""
    whole = True
    for each in pending:
        whole = each.wait() and whole
    return whole


def shared_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """The model's persistent buffers: what a forward may change and a checkpoint would keep."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    ]


class SharedBuffers:
    """Rank 0's buffers become everybody's at the end of each step, as DDP's do at its start.

    Without it, running statistics of a rank that dies would exist nowhere else. Ranks other than 0
    add zeros, so the sum is rank 0's value on all of them.
    """

    def __init__(self, buffers: list[torch.Tensor], launch: Callable[[torch.Tensor], Sum]) -> None:
        self._launch = launch
        self._groups: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        for dtype in sorted({buffer.dtype for buffer in buffers}, key=str):
            if dtype in _UNSENDABLE:
                raise UsageError(
                    f"the model has a buffer of {dtype}, which collectives do not carry: use "
                    "int32, or register it with persistent=False if ranks may differ in it"
                )
            group = [buffer for buffer in buffers if buffer.dtype == dtype]
            wire = torch.uint8 if dtype == torch.bool else dtype
            size = sum(buffer.numel() for buffer in group)
            self._groups.append((group, torch.zeros(size, dtype=wire, device=group[0].device)))
        self._pending: list[Sum] = []

    @torch.no_grad()
    def start(self, rank: int) -> None:
        self._pending = []
        for group, flat in self._groups:
            if rank == 0:
                torch.cat([buffer.reshape(-1).to(flat.dtype) for buffer in group], out=flat)
            else:
                flat.zero_()
            self._pending.append(self._launch(flat))

    def wait(self) -> bool:
        return wait_all(self._pending)

    def renew(self) -> None:
        """Takes fresh memory for the wire."""
        self._groups = [(group, torch.zeros_like(flat)) for group, flat in self._groups]

    @torch.no_grad()
    def adopt(self) -> None:
        for group, flat in self._groups:
            for buffer, part in zip(
                group, flat.split([buffer.numel() for buffer in group]), strict=True
            ):
                buffer.copy_(part.view_as(buffer))


class Reducer:
    """Sums gradients over the group while backward runs, and averages them at the end of a step.

    `launch` starts the sum of one flat buffer; the group gives it, a plain twin its own.
    """

    def __init__(
        self,
        parameters: list[tuple[str, torch.nn.Parameter]],
        launch: Callable[[torch.Tensor], Sum],
        buffers: list[torch.Tensor],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.parameters = [item for item in parameters if item[1].requires_grad]
        self.plan = plan_buckets(self.parameters, bucket_bytes)
        self._launch = launch
        self._buffers = [
            torch.zeros(bucket.numel, dtype=bucket.dtype, device=bucket.device)
            for bucket in self.plan.buckets
        ]
        self._place = {
            index: number
            for number, bucket in enumerate(self.plan.buckets)
            for index in bucket.indices
        }
        self._shared = SharedBuffers(buffers, launch)
        self._missing: list[int] = []
        self._seen: set[int] = set()
        self._pending: list[Sum] = []
        self._armed = False
        for index, (_, parameter) in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def begin_step(self) -> None:
        """Forgets the step before; the next backward's gradients travel."""
        self._missing = [len(bucket.indices) for bucket in self.plan.buckets]
        self._seen = set()
        self._pending = []
        self._armed = True

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        number = self._place[index]

        def ready(_parameter: torch.Tensor) -> None:
            if not self._armed:
                return
            if not self._seen:
                points.reach("backward")
            if index in self._seen:
                # Its bucket may be under way already; what this adds would silently be left out.
                raise UsageError(
                    f"{self.parameters[index][0]} got a second gradient in one step: call "
                    "backward once a batch, on the sum of its losses"
                )
            self._seen.add(index)
            self._missing[number] -= 1
            # Buckets start in plan order only: every rank must issue the same sequence.
            while len(self._pending) < len(self._missing) and not self._missing[len(self._pending)]:
                self._start(len(self._pending))

        return ready

    def _start(self, number: int) -> None:
        bucket, buffer = self.plan.buckets[number], self._buffers[number]
        offset = 0
        for index in bucket.indices:
            parameter = self.parameters[index][1]
            flat = buffer[offset : offset + parameter.numel()]
            if parameter.grad is None:
                flat.zero_()
            else:
                flat.copy_(parameter.grad.reshape(-1))
            offset += parameter.numel()
        self._pending.append(self._launch(buffer))

    def finish(self, rank: int, world_size: int) -> bool:
        """Waits for all sums and writes averages into `.grad`; False when any failed."""
        while len(self._pending) < len(self.plan.buckets):
            self._start(len(self._pending))  # parameters that this step's loss did not reach
        self._shared.start(rank)
        whole = wait_all(self._pending) & self._shared.wait()
        self._armed = False
        self._pending = []
        if not whole:
            # A collective that was given up may still hold the old memory, so it is not used again.
            self._buffers = [torch.zeros_like(buffer) for buffer in self._buffers]
            self._shared.renew()
            return False
        self._shared.adopt()
        for bucket, buffer in zip(self.plan.buckets, self._buffers, strict=True):
            buffer.div_(world_size)
            offset = 0
            for index in bucket.indices:
                parameter = self.parameters[index][1]
                flat = buffer[offset : offset + parameter.numel()].view_as(parameter)
                if parameter.grad is None:
                    parameter.grad = flat.clone()
                else:
                    parameter.grad.copy_(flat)
                offset += parameter.numel()
        return True
