"""These tests need SkyRL-train, so they are collected only when they are named, as `make bridges` does."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "bridges_driven"))


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    named = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore")  # SkyRL-train and Ray warn of what is not installed
