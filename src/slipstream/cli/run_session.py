"""Runs a session in a terminal, for any command.

Input: a session, a display, and the functions that plan, run and report it. Output: a report, in the store and on
standard output. Invariants: however it ends, the last line says how to resume the run, once there is one; a new run in
which nothing was done, because a setting is wrong, leaves no folder behind.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer
from rich.console import Console

from slipstream.aio import run_stoppable
from slipstream.cli.displays.output import OutputRefused
from slipstream.cli.sessions import Config, Session, check_tasks
from slipstream.errors import ConfigError, InfrastructureError, RunError
from slipstream.progress.display import Display
from slipstream.record import RunStore

T = TypeVar("T")


class Planned(Protocol):
    """What is about to run."""

    @property
    def tasks_digest(self) -> str: ...


Plan = TypeVar("Plan", bound=Planned)
OpenStore = Callable[[], RunStore]


def run_session(
    session: Session[Config],
    display: Display,
    plan_it: Callable[[Config], Plan],
    do_it: Callable[[Plan, OpenStore], Coroutine[Any, Any, T]],
) -> T:
    """Plan the session and run it. Ends in typer.Exit where it is stopped or fails."""

    with _ending(session, display):
        plan = plan_it(session.config)
        if (past := session.past or session.copied) is not None:
            check_tasks(past, plan.tasks_digest)

        def open_store() -> RunStore:
            store = session.open_store(plan.tasks_digest)
            display.say(f"run: {store.folder}")
            if session.copied is not None:
                display.say(
                    f"its first {store.counts().rollouts} rollouts are those of {session.copied.folder.resolve()}"
                )
            for change in session.changes:
                display.say(f"changed: {change}")
            return store

        with display:
            return run_stoppable(do_it(plan, open_store))


def print_result(
    session: Session[Config],
    display: Display,
    *,
    as_json: bool,
    text: Callable[[Path], str],
    table: Callable[[Console, Path], None],
) -> None:
    """The result of the run, as JSON or for people."""
    assert session.folder is not None
    try:
        if as_json:
            print(text(session.folder), flush=True)
        else:
            table(Console(), session.folder)
    except OutputRefused as raised:
        display.say(f"slipstream: the report cannot be written ({raised}){_how_to_resume(session)}")
        raise typer.Exit(1) from raised


@contextmanager
def _ending(session: Session[Config], display: Display) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        session.forget_if_empty()
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        display.say("stopped" + _how_to_resume(session))
        raise typer.Exit(130) from None
    except (InfrastructureError, RunError) as raised:
        display.say(f"slipstream: {type(raised).__name__}: {raised}{_how_to_resume(session)}")
        raise typer.Exit(1) from raised


def _how_to_resume(session: Session[Config]) -> str:
    if session.folder is None or not RunStore.exists(session.folder):
        return ""
    return f"; resume with: slipstream {session.command} --resume {shlex.quote(str(session.folder))}"
