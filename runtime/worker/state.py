"""All state of a rank as a list of tensors and one JSON tree: captured, digested, put back.

The tree holds every scalar; a tensor in it stands as {"$t": index}. Floats travel as hexadecimal
text, so that what arrives has the same bits. No pickle anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from blake3 import blake3

from runtime.errors import UsageError

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


class HasStateDict(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class Entry:
    """One tensor of a snapshot: canonical name, dtype name, shape, size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass
class Snapshot:
    """State at one committed step; tensors are live ones (a source) or fresh (a receiver)."""

    tree: dict[str, Any]
    entries: list[Entry]
    tensors: list[torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)

    def header(self) -> dict[str, Any]:
        return {
            "tree": self.tree,
            "entries": [[e.name, e.dtype, list(e.shape), e.nbytes] for e in self.entries],
        }

    @classmethod
    def empty_like_header(cls, header: Mapping[str, Any]) -> Snapshot:
        """Fresh CPU memory for what a header announces; ValueError where it does not add up."""
        entries = [
            Entry(str(name), str(dtype), tuple(int(n) for n in shape), int(nbytes))
            for name, dtype, shape, nbytes in header["entries"]
        ]
        tensors = []
        for entry in entries:
            if (dtype := _DTYPES.get(entry.dtype)) is None:
                raise ValueError(f"{entry.name} has the unknown dtype {entry.dtype}")
            # Before any memory is taken: a damaged header may ask for all there is.
            size = math.prod(entry.shape) * dtype.itemsize
            if min(entry.shape, default=0) < 0 or size != entry.nbytes:
                raise ValueError(f"{entry.name} announces {entry.nbytes} bytes for {entry.shape}")
            tensors.append(torch.empty(entry.shape, dtype=dtype))
        return cls(dict(header["tree"]), entries, tensors)

    def bytes_of(self, index: int) -> memoryview:
        """The bytes of one tensor, writable where the tensor is on the CPU and contiguous."""
        return tensor_bytes(self.tensors[index])

    def digest(self) -> str:
        """BLAKE3 over the tree, then each tensor's name, dtype, shape and bytes in order."""
        hasher = blake3(_canonical(self.tree))
        for index, entry in enumerate(self.entries):
            hasher.update(_canonical([entry.name, entry.dtype, list(entry.shape)]))
            hasher.update(self.bytes_of(index))
        return hasher.hexdigest()

    def clone(self) -> Snapshot:
        """A copy that later steps do not touch."""
        return Snapshot(self.tree, self.entries, [each.detach().clone() for each in self.tensors])


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is one


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class StateBook:
    """Knows where the state of a training script lives, and reads and writes it as a whole."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: HasStateDict | None,
        scaler: HasStateDict | None,
        extras: Mapping[str, HasStateDict],
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._objects: dict[str, HasStateDict] = {}
        if scheduler is not None:
            self._objects["scheduler"] = scheduler
        if scaler is not None:
            self._objects["scaler"] = scaler
        for name, extra in extras.items():
            self._objects[f"extra.{name}"] = extra
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) not in known for parameter in self._parameters):
            raise UsageError(
                "the optimizer has a parameter that is not one of the model's, so it would be "
                "neither reduced nor carried: make it a parameter of the model"
            )

    def capture(self, committed_step: int) -> Snapshot:
        """The state now, without copying a tensor."""
        writer = _TreeWriter()
        for name, parameter in self.model.named_parameters():
            writer.tensor(f"parameter.{name}", parameter.detach())
        for name, buffer in self.model.named_buffers():
            writer.tensor(f"buffer.{name}", buffer)
        tree: dict[str, Any] = {
            "committed_step": committed_step,
            "optimizer": [
                writer.encode(f"optimizer.{index}", dict(self.optimizer.state[parameter]))
                if parameter in self.optimizer.state
                else None
                for index, parameter in enumerate(self._parameters)
            ],
            "param_groups": [
                writer.encode(
                    f"param_group.{index}",
                    {key: value for key, value in group.items() if key != "params"},
                )
                for index, group in enumerate(self.optimizer.param_groups)
            ],
            "objects": {
                name: writer.encode(name, each.state_dict()) for name, each in self._objects.items()
            },
        }
        return Snapshot(tree, writer.entries, writer.tensors)

    def check(self, snapshot: Snapshot) -> None:
        """UsageError when a snapshot is of another model than this one; nothing is changed."""
        mine = {
            (f"{kind}.{name}", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for kind, named in (
                ("parameter", self.model.named_parameters()),
                ("buffer", self.model.named_buffers()),
            )
            for name, tensor in named
        }
        theirs = {
            (entry.name, entry.dtype, entry.shape)
            for entry in snapshot.entries
            if entry.name.startswith(("parameter.", "buffer."))
        }
        if odd := sorted(mine ^ theirs):
            raise UsageError(
                f"the state is of another model: {odd[0][0]} differs in name, dtype or shape"
            )
        tree = snapshot.tree
        sizes = (len(self._parameters), len(self.optimizer.param_groups))
        if (len(tree["optimizer"]), len(tree["param_groups"])) != sizes:
            raise UsageError("the state is of another optimizer: it has other parameters or groups")
        if set(tree["objects"]) != set(self._objects):
            names = ", ".join(sorted(set(tree["objects"]) ^ set(self._objects)))
            raise UsageError(f"the state is of another script: {names} is on one side only")

    @torch.no_grad()
    def apply(self, snapshot: Snapshot) -> int:
        """Puts a whole, verified snapshot in place; returns its committed step."""
        self.check(snapshot)
        by_name = dict(
            zip((entry.name for entry in snapshot.entries), snapshot.tensors, strict=True)
        )
        for name, parameter in self.model.named_parameters():
            parameter.copy_(by_name[f"parameter.{name}"])
        for name, buffer in self.model.named_buffers():
            buffer.copy_(by_name[f"buffer.{name}"])
        tree = snapshot.tree
        self.optimizer.state.clear()
        for parameter, saved in zip(self._parameters, tree["optimizer"], strict=True):
            if saved is not None:
                decoded = _decode(saved, snapshot.tensors)
                self.optimizer.state[parameter] = {
                    key: value.to(self._device_of(key, parameter))
                    if isinstance(value, torch.Tensor)
                    else value
                    for key, value in decoded.items()
                }
        for group, saved in zip(self.optimizer.param_groups, tree["param_groups"], strict=True):
            group.update(_decode(saved, snapshot.tensors))
        for name, each in self._objects.items():
            each.load_state_dict(_decode(tree["objects"][name], snapshot.tensors))
        return int(tree["committed_step"])

    def _device_of(self, key: str, parameter: torch.Tensor) -> torch.device:
        """torch keeps the step count on the CPU, but for fused and capturable optimizers."""
        if key != "step":
            return parameter.device
        for group in self.optimizer.param_groups:
            if any(parameter is each for each in group["params"]) and (
                group.get("fused") or group.get("capturable")
            ):
                return parameter.device
        return torch.device("cpu")

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for _, buffer in self.model.named_buffers()]


class _TreeWriter:
    """Turns nested containers into JSON, taking the tensors out in order of first sight."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.tensors: list[torch.Tensor] = []

    def tensor(self, name: str, tensor: torch.Tensor) -> dict[str, int]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise UsageError(f"{name} has dtype {dtype}, which the runtime does not carry yet")
        size = tensor.numel() * tensor.element_size()
        self.entries.append(Entry(name, dtype, tuple(tensor.shape), size))
        self.tensors.append(tensor.detach())
        return {"$t": len(self.tensors) - 1}

    def encode(self, name: str, value: Any) -> Any:
        match value:
            case torch.Tensor():
                return self.tensor(name, value)
            case None | bool() | str():
                return value
            case int():
                return int(value)
            case float():
                return {"$f": float(value).hex()}
            case tuple():
                return {"$u": [self.encode(f"{name}.{i}", v) for i, v in enumerate(value)]}
            case list():
                return [self.encode(f"{name}.{i}", v) for i, v in enumerate(value)]
            case Mapping():
                return {
                    "$d": [
                        [self.encode(name, key), self.encode(f"{name}.{key}", each)]
                        for key, each in value.items()
                    ]
                }
        raise UsageError(
            f"{name} is a {type(value).__name__}; state may hold tensors, numbers, text, lists, "
            "tuples and dictionaries: convert it in the object's state_dict"
        )


def _decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "$t" in value:
        return tensors[value["$t"]]
    if "$f" in value:
        return float.fromhex(value["$f"])
    if "$u" in value:
        return tuple(_decode(each, tensors) for each in value["$u"])
    return {_decode(key, tensors): _decode(each, tensors) for key, each in value["$d"]}
