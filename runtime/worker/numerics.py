"""What makes two processes compute the same bits: seeds by step, and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch


def seed_step(seed: int, rank: int, step: int, micro_step: int = 0) -> None:
    """Sets every generator to a value that depends on (seed, rank, step, micro-step) only."""
    text = f"{seed}/{rank}/{step}/{micro_step}".encode()
    value = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
    torch.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


def framework() -> str:
    return f"torch-{torch.__version__.split('+')[0]}"


def fingerprint(plan_digest: str) -> str:
    """A digest of what must be equal on all ranks for equal bits: build, device, flags, code."""
    script = Path(sys.argv[0])
    facts = {
        "plan": plan_digest,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "precision": torch.get_float32_matmul_precision(),
        "code": hashlib.sha256(script.read_bytes()).hexdigest() if script.is_file() else None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
