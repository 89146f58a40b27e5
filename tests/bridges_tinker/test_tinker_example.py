"""`examples/train_on_tinker.py` as written, against a real server of the Tinker API."""

import subprocess
import sys
from pathlib import Path

import slipstream as ss
from bridges_tinker.tinker_server import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_on_tinker.py"


def test_the_example_trains_on_a_server(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert "skyrl.tinker.api" in run("model")
    with Server(tmp_path / "model", tmp_path) as server:
        assert "rewards {0: " in run("model", server.url)
    (folder,) = (tmp_path / "runs").iterdir()
    figures = ss.open_run(folder).metrics()
    assert [step["step"] for step in figures] == [0, 1]
    assert all(step["learn/engine_diff_mean"] < 1e-3 for step in figures), "what was sampled is what was scored"
    assert (folder / "trained" / "tinker.json").is_file()
