"""The last resort on disk: whole checkpoints with a manifest, never half there."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from runtime.errors import CheckpointInvalid
from runtime.worker import points
from runtime.worker.state import Snapshot

KEEP = 2
_NUMBER = re.compile(r"\d+")


def save(folder: Path, snapshot: Snapshot, epoch: int) -> dict[str, Any]:
    """Writes step_N/ with tensors and manifest.json; it appears whole or not at all.

    Raises OSError where the disk refuses; checkpoints that were there before stay as they are.

    The name carries the epoch, so that a replaced worker cannot overwrite what a later epoch saved.
    """
    step = snapshot.tree["committed_step"]
    final = folder / f"step_{step:09d}.epoch_{epoch}"
    work = folder / f".{final.name}.{os.getpid()}"
    try:
        return _write(folder, work, final, snapshot, epoch)
    except CheckpointException as error:
        # A BaseException of torch's, around whatever went wrong.
        raise OSError(f"{final} could not be written: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(folder: Path, work: Path, final: Path, snapshot: Snapshot, epoch: int) -> dict[str, Any]:
    step = snapshot.tree["committed_step"]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tensors = {f"{index:06d}": tensor for index, tensor in enumerate(snapshot.tensors)}
    dcp.save(tensors, storage_writer=FileSystemWriter(work / "tensors"), no_dist=True)
    points.reach("saving")
    digest = snapshot.digest()
    manifest = {"step": step, "epoch": epoch, "digest": digest, "header": snapshot.header()}
    with (work / "manifest.json").open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)
    work.replace(final)
    _sync(folder)
    return {"step": step, "path": str(final), "digest": digest}


def load(path: Path, digest: str) -> Snapshot:
    """Reads a checkpoint back; CheckpointInvalid unless its bits are those of its manifest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        snapshot = Snapshot.empty_like_header(manifest["header"])
        tensors = {f"{index:06d}": tensor for index, tensor in enumerate(snapshot.tensors)}
        dcp.load(tensors, storage_reader=FileSystemReader(path / "tensors"), no_dist=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, CheckpointException) as error:
        raise CheckpointInvalid(f"{path} cannot be read: {error}") from error
    if snapshot.digest() != digest:
        raise CheckpointInvalid(f"{path} does not have the digest of its manifest")
    return snapshot


def prune(folder: Path) -> None:
    """Keeps the newest checkpoints; older ones go, and what a killed process left half-written."""
    whole = [path for path in folder.glob("step_*") if (path / "manifest.json").exists()]
    whole.sort(key=lambda path: [int(number) for number in _NUMBER.findall(path.name)])
    for path in whole[:-KEEP]:
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step_*"):
        if not Path(f"/proc/{path.name.rpartition('.')[2]}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Saver:
    """Writes one checkpoint at a time in a thread; the training thread only copies memory."""

    def __init__(self, folder: Path, on_saved: Callable[[dict[str, Any]], None]) -> None:
        self._folder = folder
        self._on_saved = on_saved
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None  # why the last save that failed did

    def begin(self, snapshot: Snapshot, epoch: int) -> None:
        """`snapshot` must be a copy; waits for the checkpoint before it."""
        self.wait()
        self._thread = threading.Thread(
            target=self._save, args=(snapshot, epoch), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _save(self, snapshot: Snapshot, epoch: int) -> None:
        try:
            self._on_saved(save(self._folder, snapshot, epoch))
            prune(self._folder)
        except OSError as error:
            # A full disk must not end the run: the last checkpoint stands.
            self.error = error
            print(f"unbroken: checkpoint not written: {error}", flush=True)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
