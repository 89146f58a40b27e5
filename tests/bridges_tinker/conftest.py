"""These tests need the tinker SDK and SkyRL's server, so they are collected only when they are named, as `make bridges`
does."""

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from bridges_tinker.tinker_server import Server  # noqa: E402


def is_named(config: pytest.Config) -> bool:
    """If not, this file is loaded anyway, and must have no effect."""
    named = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return any(path == HERE or HERE in path.parents for path in named)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if is_named(config) else True


def pytest_configure(config: pytest.Config) -> None:
    if not is_named(config):
        return
    # The SDK leaves its connections, on a thread of its own, to the end of the process.
    config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not is_named(config):
        return
    versions = ", ".join(f"{name} {version(name)}" for name in ("tinker", "skyrl", "jax", "transformers"))
    terminalreporter.write_line(f"bridge tinker: {versions}")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model, with random weights."""
    from slipstream.recipes.quickstart.model import make_model

    return make_model(tmp_path_factory.mktemp("served") / "model", seed=0)


@pytest.fixture(scope="session")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(model_folder, tmp_path_factory.mktemp("server")) as running:
        yield running
