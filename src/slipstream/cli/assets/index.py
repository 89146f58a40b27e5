"""The commands about local search indexes: make one, ask one.

Standard output is for results; progress goes to standard error.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from slipstream.printable import one_line

index_app = typer.Typer(help="Make a local search index, and ask it.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@index_app.command("make")
def make_command(
    source: Annotated[Path, typer.Argument(help="A folder of text, Markdown and HTML files, or a .jsonl file.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to make.")],
    encoder: Annotated[
        str, typer.Option(help="The encoder of passages, by name or folder; an empty one for words alone.")
    ] = "minilm",
    force: Annotated[bool, typer.Option("--force", help="Replace the index if it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Index documents for the search tool. If it is stopped, the same command goes on."""
    from slipstream.progress.display import progress_console
    from slipstream.progress.indexing import IndexDisplay
    from slipstream.tools.search.build import make_index

    start_s = time.monotonic()
    with IndexDisplay(progress_console()) as display:
        about = make_index(source, out, encoder=encoder, force=force, on_progress=display.show)
    seconds = time.monotonic() - start_s
    if as_json:
        print(json.dumps({"folder": str(out), **asdict(about), "seconds": round(seconds, 2)}, indent=2))
        return
    print(one_line(f"{out}: {about.num_documents} documents, {about.num_passages} passages, {seconds:.1f} s"))


@index_app.command("search")
def search_command(
    folder: Annotated[Path, typer.Argument(help="An index.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    limit: Annotated[int, typer.Option(min=1, help="Results.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show what an agent would find."""
    from slipstream.tools.search.index import LocalIndex
    from slipstream.tools.search.threads import one_blas_thread

    with one_blas_thread():
        (hits,) = LocalIndex(folder).search([query], limit=limit)
    if as_json:
        print(json.dumps([asdict(hit) for hit in hits], indent=2))
        return
    for hit in hits:
        print(one_line(f"{hit.score:.4f}  {hit.docid}  {hit.title}"))
        print(one_line(f"        {hit.snippet[:160]}"))
