"""Questions on the invented encyclopedia, with a real index and a real web site behind the tools.

Making the tasks builds the index, with real embeddings, and starts the site. Both stay: the index on disk, the site
until the process ends.
"""

from __future__ import annotations

import json
from pathlib import Path

import slipstream as ss
from slipstream.recipes.research.site import HOST, PORT, serve, url_of
from slipstream.recipes.research.world import World, make_world

MAX_QUESTIONS = 64


def research_tasks(
    *, num: int = 16, seed: int = 0, port: int = PORT, without: str = "", encoder: str = "minilm", folder: str = ""
) -> tuple[ss.Task, ...]:
    """The first `num` questions of a seed. `without` names a tool that agents do not get, to see what it is worth;
    `folder` is where the index is kept, by default in the cache."""
    if not 1 <= num <= MAX_QUESTIONS:
        raise ss.ConfigError(f"num={num}: ask for 1 to {MAX_QUESTIONS} questions")
    names = {"search": ss.search_documents, "open_page": ss.open_page, "finish": ss.finish}
    if without not in ("", "search", "open_page"):
        raise ss.ConfigError(f'without="{without}": name search or open_page')
    world = make_world(seed=seed, num_companies=MAX_QUESTIONS)
    serve(world, seed=seed, port=port)
    index = _index(world, seed=seed, port=port, encoder=encoder, folder=folder)
    resources: dict[str, ss.Json] = {
        "search": {"index": str(index), "limit": 3},
        "pages": {"private_hosts": [f"{HOST}:{port}"], "max_pages": 8},
    }
    return tuple(
        ss.Task(
            id=f"{seed}-{number:03d}",
            instruction=f"{question.text} Search for pages, open them, and finish with the answer alone.",
            tools=[tool for name, tool in names.items() if name != without],
            grader=ss.exact(question.answer),
            limits=ss.AgentLimits(turns=10),
            resources=resources,
        )
        for number, question in enumerate(world.questions[:num])
    )


def _index(world: World, *, seed: int, port: int, encoder: str, folder: str) -> Path:
    """The index of what the pages begin with; a page's id is its address."""
    place = Path(folder) if folder else ss.default_home() / "indexes"
    place.mkdir(parents=True, exist_ok=True)
    source, out = place / f"research-{seed}-{port}.jsonl", place / f"research-{seed}-{port}"
    rows = [
        {"docid": url_of(entry, seed=seed, port=port), "title": entry.title, "text": entry.abstract}
        for entry in world.entries
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if not source.is_file() or source.read_text() != text:
        source.write_text(text)
    ss.make_index(source, out, encoder=encoder, reuse=True)
    return out
