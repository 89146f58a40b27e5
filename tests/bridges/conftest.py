"""These tests need other trainers' packages, so they are collected only when they are named, as `make bridges` does."""

from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def is_named(config: pytest.Config) -> bool:
    """If not, this file is loaded anyway, and must have no effect."""
    named = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return any(path == HERE or HERE in path.parents for path in named)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if is_named(config) else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not is_named(config):
        return
    versions = ", ".join(f"{name} {version(name)}" for name in ("tinker-cookbook", "tinker", "torch", "transformers"))
    terminalreporter.write_line(f"bridge tinker-cookbook: {versions}")
