"""What tests of nodes share: a compiled NVML stub."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.health.stub import build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the stub library."""
    return build(tmp_path_factory.mktemp("nvml")).parent
