"""These tests need vLLM, so they are collected only when they are named, as `make bridges` does."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from bridges_vllm.vllm_server import Server
from bridges_vllm.walker import make_walker

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
    versions = ", ".join(f"{name} {version(name)}" for name in ("vllm", "torch", "transformers"))
    terminalreporter.write_line(f"bridge vllm: {versions}")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_walker(tmp_path_factory.mktemp("served") / "walker")


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(model, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def without_logprobs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A second server, that gives none."""
    with Server(model, tmp_path_factory.mktemp("second"), "--max-logprobs", "0") as running:
        yield running
