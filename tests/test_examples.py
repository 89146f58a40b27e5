"""The examples run as they stand, and do what they say."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "own_tool.py": "mean reward 1.000 of 12 rollouts",
    "grader_in_sandbox.py": "mean reward 1.000",
    "environment_with_state.py": "mean reward 1.000",
    "context_edit.py": "mean reward 1.000 in 6 turns",
}


def test_the_readme_shows_the_training_example_as_it_is() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    shown = readme.partition("```python\n")[2].partition("```")[0]
    assert shown == (EXAMPLES / "train_letters.py").read_text()
    assert len([line for line in shown.splitlines() if line]) <= 20


def test_the_readmes_example_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_letters.py")], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    rewards = ast.literal_eval(ran.stdout.splitlines()[-1])
    assert sum(rewards[step] for step in (7, 8, 9)) / 3 > rewards[0] + 0.2


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_as_written(name: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert SAYS[name] in ran.stdout


def test_the_example_on_another_bridge_is_checked_as_far_as_the_server(tmp_path: Path) -> None:
    """`make bridges` runs it against a real one (`tests/bridges_tinker/test_tinker_example.py`)."""
    pytest.importorskip("transformers")
    script = [sys.executable, str(EXAMPLES / "train_on_tinker.py"), "model"]
    made = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert f"--base-model {tmp_path / 'model'} --backend jax" in made.stdout, made.stderr
    ran = subprocess.run([*script, "http://127.0.0.1:9"], cwd=tmp_path, capture_output=True, text=True)
    said = ran.stderr.splitlines()[-1]
    assert "bridge=tinker needs the SDK" in said or "127.0.0.1:9" in said, "settings, tasks and tokenizer are accepted"
