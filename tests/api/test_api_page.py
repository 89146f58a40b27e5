"""docs/api.md is what scripts/api_page.py prints, and has every public name."""

import subprocess
import sys
from pathlib import Path

import slipstream

ROOT = Path(__file__).parents[2]


def test_the_page_is_as_the_script_prints_it() -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "api_page.py")], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs" / "api.md").read_text() == printed, "run scripts/api_page.py > docs/api.md"
    for name in slipstream.__all__:
        assert name == "__version__" or f"### `{name}" in printed
