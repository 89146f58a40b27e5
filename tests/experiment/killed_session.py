"""Runs the tiny experiment again and again in children of this process, kills each at a line of its progress, and moves
what came of it to another folder.

    python killed_session.py OUT ELSEWHERE PREFIX...

A child that says a line that begins with the next PREFIX gets SIGKILL; after the last one, a child runs to the end.
Then OUT is packed and unpacked into ELSEWHERE, where a child makes one more step. Forking saves each child the seconds
that torch and transformers take to import.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import peft  # noqa: F401  (once, for all children)
import transformers.models.qwen3.modeling_qwen3  # noqa: F401

from slipstream.engine.training.compact import compact  # noqa: F401
from slipstream.experiment.pack import PackLimits, pack_experiment, unpack_experiment
from slipstream.experiment.plan import make_plan
from slipstream.experiment.session import SessionOptions, run_session

DESIGN = f"{Path(__file__).with_name('tiny_design.py')}:design"


def session(out: Path, kill_at: str | None, *changed: str) -> None:
    def say(line: str) -> None:
        print(line, flush=True)
        if kill_at is not None and line.startswith(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)

    plan = make_plan(DESIGN, Path.cwd(), arm="full", seed=1, overrides=changed)
    asyncio.run(run_session(plan, out, SessionOptions(samples=2), on_status=say))


def move(out: Path, elsewhere: Path) -> None:
    packed = pack_experiment(out, elsewhere.with_name("pieces"), PackLimits(file_bytes=50_000))
    print(f"packed in {len(packed.files)} files, moments as {packed.moments}")
    unpack_experiment(elsewhere.with_name("pieces"), elsewhere)


def in_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        work()
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def main() -> None:
    out, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
    for kill_at in (*sys.argv[3:], None):
        in_child(lambda kill_at=kill_at: session(out, kill_at))  # type: ignore[misc]
    in_child(lambda: move(out, elsewhere))
    in_child(lambda: session(elsewhere, None, "steps=3"))


if __name__ == "__main__":
    main()
