"""A torch Store whose keys live in the coordinator, fenced by epoch."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import torch.distributed as dist

from runtime.errors import StepVoid
from runtime.lines import LineSocket


class EpochStore(dist.Store):
    """Serves one construction of one process group; `close` from another thread unblocks it.

    ProcessGroupGloo takes it directly and never from inside a PrefixStore, which a Store written
    in Python does not survive (seen with torch 2.13).
    """

    def __init__(self, endpoint: str, token: str, worker: str, epoch: int) -> None:
        super().__init__()
        self._arguments = (endpoint, token, worker, epoch)
        self._epoch = epoch
        self._line = LineSocket.connect(endpoint, timeout_seconds=5.0)
        self._line.send({"op": "store", "token": token, "worker": worker})

    def clone(self) -> EpochStore:
        return EpochStore(*self._arguments)

    def set(self, key: str, value: bytes | str) -> None:
        body = value.encode() if isinstance(value, str) else bytes(value)
        self._call({"op": "set", "key": key, "value": base64.b64encode(body).decode()})

    def get(self, key: str) -> bytes:
        answer = self._call({"op": "get", "keys": [key]})
        return base64.b64decode(answer["values"][0])

    def wait(self, keys: list[str], timeout: dt.timedelta | None = None) -> None:
        # No timeout of its own: the epoch ends, or the link closes this socket.
        self._call({"op": "get", "keys": list(keys)})

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._line.send({**message, "epoch": self._epoch})
            answer = self._line.receive()
        except (OSError, ValueError) as error:
            raise StepVoid(f"the rendezvous of epoch {self._epoch} was cut: {error}") from error
        if answer is None or not answer["ok"]:
            raise StepVoid(f"epoch {self._epoch} is over")
        return answer

    def close(self) -> None:
        self._line.close()
