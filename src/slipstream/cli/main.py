"""Where the command line begins. Little is imported until ^C is handled: it ends a command in one line, and never
in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` spell, by default those of the process; ends in SystemExit."""
    try:
        from slipstream.aio import collect_rarely

        collect_rarely()  # importing makes no garbage, and neither do rollouts
        from slipstream.cli.commands import run_command

        run_command(arguments)
    except KeyboardInterrupt:
        print("slipstream: stopped", file=sys.stderr)
        sys.exit(130)
