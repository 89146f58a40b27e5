"""The limit on open files, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from slipstream.placement.open_files import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(300, 900, 900), (900, 900, 900)])
def test_the_soft_limit_is_raised_to_the_hard_one_once(soft: int, hard: int, raised: int) -> None:
    program = PROGRAM.format(soft=soft, hard=hard)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"{soft} {raised} {hard}", f"{soft} {soft} {hard}"]
