"""Holds torch imported and nothing else, and forks a fresh worker each time it is asked to.

It has no thread, no process group and no CUDA context, so that a fork of it is sound. Orders come
as lines of JSON on standard input, news of ended children go out the same way. Its children die
with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path
from typing import Any

from runtime.processes import die_with_parent


def preload() -> None:
    """Imports what a worker needs, so that a fork starts in milliseconds."""
    import torch
    import torch.distributed.checkpoint

    import runtime.worker

    torch.set_num_threads(1)
    _ = runtime.worker, torch.distributed.checkpoint


def run_script(argv: list[str], environment: dict[str, str], log: Path) -> None:
    """In the child: becomes the training script; never returns."""
    status = 1
    try:
        os.environ.update(environment)
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))
        runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Zygote:
    def __init__(self) -> None:
        self._children: dict[int, dict[str, Any]] = {}
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Until standard input closes; then every child is ended and reaped."""
        self._say({"op": "loaded", "pid": os.getpid()})
        buffer = b""
        while True:
            readable, _, _ = select.select([0, self._wake_read], [], [])
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if 0 in readable:
                piece = os.read(0, 65536)
                if not piece:
                    break
                *orders, buffer = (buffer + piece).split(b"\n")
                for order in orders:
                    self._obey(json.loads(order))
        for pid in list(self._children):
            os.kill(pid, signal.SIGKILL)
        while self._children:
            self._reap(block=True)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["op"] == "spawn":
            self._spawn(order)
        elif order["op"] == "kill":
            # Our own unreaped child, so the pid cannot be somebody else's by now.
            for pid, child in self._children.items():
                if child["worker"] == order["worker"]:
                    os.kill(pid, signal.SIGKILL)

    def _spawn(self, order: dict[str, Any]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not die_with_parent(parent):
                os._exit(1)
            os.setpgid(0, 0)
            devnull = os.open(os.devnull, os.O_RDONLY)
            os.dup2(devnull, 0)
            run_script(order["argv"], order["environment"], Path(order["log"]))
        self._children[pid] = {"worker": order["worker"], "slot": order["slot"]}
        self._children[pid]["incarnation"] = order["incarnation"]
        self._say({"op": "spawned", "pid": pid, **self._children[pid]})

    def _reap(self, *, block: bool = False) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                code = os.waitstatus_to_exitcode(status)
                self._say({"op": "exited", "pid": pid, "status": code, **child})

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(message).encode() + b"\n")


def main() -> None:
    if not die_with_parent(int(sys.argv[1])):
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us
    zygote = Zygote()
    preload()
    gc.freeze()
    zygote.serve()


if __name__ == "__main__":
    main()
