"""Measures search and page reading as agents use them.

Search: an index of passages of which some are really embedded and the others have vectors that are mixtures of those,
and agents that pause between queries. The time of a query includes its embedding. Pages: a site whose pages take 0.5 to
2 s, read all at once, with a summariser that takes 1 s.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.hub import default_home, get_encoder
from slipstream.model.scripted import ScriptedChat
from slipstream.model.server import ModelServer
from slipstream.tools import Toolset
from slipstream.tools.search.build import make_index
from slipstream.tools.search.encoder import TextEncoder
from slipstream.tools.search.index import ABOUT, VECTORS, AboutIndex, LocalIndex
from slipstream.tools.search.local import IndexRetriever
from slipstream.tools.search.threads import one_blas_thread
from slipstream.tools.web.tool import open_page
from slipstream.types import Json, ToolCall

ENCODER = "minilm"
WORDS_PER_PASSAGE = 40
PAGE_S, SUMMARY_S = (0.5, 2.0), 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBenchLoad:
    passages: int = 100_000
    embedded: int = 5_000
    agents: int = 64
    pause_s: float = 2.0
    """On average; exponentially distributed."""
    searches: int = 12
    """Of each agent."""
    pages: int = 32
    on_status: Callable[[str], None] = lambda line: None


def run(load: SearchBenchLoad) -> dict[str, Json]:
    folder = default_home() / "bench" / f"search-{load.passages}-{load.embedded}"
    if not (folder / ABOUT).is_file():
        _make(folder, load)
    load.on_status("searching")
    searching = asyncio.run(_search(LocalIndex(folder), load))
    return {**searching, **_memory(folder), **asyncio.run(_read_pages(load.pages))}


# ---------------------------------------------------------------- the index


def _make(folder: Path, load: SearchBenchLoad) -> None:
    import numpy

    encoder = TextEncoder(get_encoder(ENCODER))
    folder.parent.mkdir(parents=True, exist_ok=True)
    source, made = folder.with_suffix(".jsonl"), folder.with_suffix(".words")
    chance = random.Random(7)
    texts = [" ".join(words) for words in _texts(chance, load.passages)]
    source.write_text("".join(json.dumps({"docid": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    load.on_status("counting words")
    about = make_index(source, made, encoder="", force=True)
    load.on_status(f"embedding {load.embedded} passages")
    with one_blas_thread():
        real = encoder.encode(texts[: load.embedded])
    vectors = numpy.lib.format.open_memmap(
        made / VECTORS, mode="w+", dtype=numpy.float32, shape=(load.passages, encoder.num_dimensions)
    )
    vectors[: load.embedded] = real
    draws = numpy.random.default_rng(7)
    for start in range(load.embedded, load.passages, 5_000):
        stop = min(load.passages, start + 5_000)
        pairs = draws.integers(0, load.embedded, (2, stop - start))
        mixed = real[pairs[0]] + draws.uniform(0.2, 0.8, (stop - start, 1)).astype(numpy.float32) * real[pairs[1]]
        mixed += draws.normal(0, 0.02, mixed.shape).astype(numpy.float32)
        vectors[start:stop] = mixed / numpy.linalg.norm(mixed, axis=1, keepdims=True)
    vectors.flush()
    whole = replace(about, encoder=ENCODER, num_dimensions=encoder.num_dimensions)
    assert isinstance(whole, AboutIndex)
    (made / ABOUT).write_bytes(whole.to_bytes())
    source.unlink()
    made.rename(folder)


def _texts(chance: random.Random, num: int) -> Iterator[list[str]]:
    """Passages of English words, as often as words are: the n-th one 1/n times as often as the first."""
    import tokenizers

    known = tokenizers.Tokenizer.from_file(str(get_encoder(ENCODER) / "tokenizer.json")).get_vocab()
    words = sorted(word for word in known if word.isascii() and word.isalpha() and len(word) > 2)
    chance.shuffle(words)
    weights = [1.0 / (rank + 10) for rank in range(len(words))]
    for _ in range(num):
        yield chance.choices(words, weights, k=WORDS_PER_PASSAGE)


# ---------------------------------------------------------------- searching


async def _search(index: LocalIndex, load: SearchBenchLoad) -> dict[str, Json]:
    retriever = IndexRetriever(index, snippet_chars=200)
    chance = random.Random(11)
    words = [passage.split()[:8] for passage in _known_passages(index, 500)]
    await retriever.search("warm up", limit=5)
    took_s: list[float] = []
    stall_s = [0.0]

    async def agent(own: random.Random) -> None:
        for _ in range(load.searches):
            await asyncio.sleep(own.expovariate(1.0 / load.pause_s))
            query = " ".join(own.sample(own.choice(words), 6))
            start_s = time.perf_counter()
            await retriever.search(query, limit=5)
            took_s.append(time.perf_counter() - start_s)

    num_batches, num_queries, cpu_s = retriever.num_batches, retriever.num_queries, _cpu_s()
    heart = asyncio.create_task(_heartbeat(stall_s))
    await asyncio.gather(*(agent(random.Random(chance.random())) for _ in range(load.agents)))
    heart.cancel()
    cpu_s = _cpu_s() - cpu_s
    num_batches, num_queries = retriever.num_batches - num_batches, retriever.num_queries - num_queries
    await retriever.aclose()
    took_s.sort()
    return {
        "search_ms_p50": round(1_000 * took_s[len(took_s) // 2], 2),
        "search_ms_p95": round(1_000 * took_s[int(0.95 * (len(took_s) - 1))], 2),
        "search_cpu_ms": round(1_000 * cpu_s / num_queries, 2),
        "loop_blocked_ms_max": round(1_000 * stall_s[0], 2),
        "searches": num_queries,
        "searches_per_batch": round(num_queries / num_batches, 2),
        "passages": load.passages,
        "embedded": load.embedded,
        "agents": load.agents,
    }


def _known_passages(index: LocalIndex, num: int) -> list[str]:
    return [index.text(f"d{number}") or "" for number in range(num)]


async def _heartbeat(longest_s: list[float], every_s: float = 0.02) -> None:
    """How much later than asked for the loop comes round."""
    while True:
        start_s = time.perf_counter()
        await asyncio.sleep(every_s)
        longest_s[0] = max(longest_s[0], time.perf_counter() - start_s - every_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------- memory


def _memory(folder: Path) -> dict[str, Json]:
    """What a further process costs that searches the same index: its own memory, and what it shares."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()  # it has searched
        own = _searched(folder)
        other.stdin.write("measure\n")
        other.stdin.flush()
        found: dict[str, Json] = json.loads(other.stdout.readline())
        own.text("")  # alive until now
    return {**found, "index_mb": round(sum(path.stat().st_size for path in folder.rglob("*")) / 1e6, 1)}


def _searched(folder: Path) -> LocalIndex:
    index = LocalIndex(folder)
    with one_blas_thread():
        index.search(["some words to look for"], limit=5)
    return index


def _measure(folder: Path) -> None:
    before = _smaps()
    _searched(folder)
    sys.stdout.write("searched\n")
    sys.stdout.flush()
    sys.stdin.readline()
    after = _smaps()
    grown = {name: (after[name] - before[name]) / 1e3 for name in after}
    shared = grown["Shared_Clean"] + grown["Shared_Dirty"]
    private = grown["Private_Clean"] + grown["Private_Dirty"]
    sys.stdout.write(json.dumps({"further_process_mb": round(private, 1), "shared_mb": round(shared, 1)}) + "\n")
    sys.stdout.flush()


def _smaps() -> dict[str, float]:
    """In kilobytes."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {line[0].rstrip(":"): float(line[1]) for line in lines if line[0].startswith(("Shared_", "Private_"))}


# ---------------------------------------------------------------- pages


async def _read_pages(num: int) -> dict[str, Json]:
    delays = [PAGE_S[0] + (PAGE_S[1] - PAGE_S[0]) * place / max(1, num - 1) for place in range(num)]
    chat = ScriptedChat(lambda scene: "a report", latency_s=lambda scene: SUMMARY_S)
    toolset = Toolset([open_page])
    async with _site(delays) as url, ModelServer(chat=chat) as server:
        pages: dict[str, Json] = {
            "private_hosts": [url.removeprefix("http://")],
            "base_url": server.base_url,
            "model": "slipstream",
            "chunk_chars": 2_000,
        }
        async with toolset.open(resources={"pages": pages}) as tools:
            warm = ToolCall(id="0", name="open_page", arguments={"url": f"{url}/0", "goal": "warm up"})
            await tools.run([warm], ())
            calls = [
                ToolCall(id=str(place), name="open_page", arguments={"url": f"{url}/{place}", "goal": "words"})
                for place in range(num)
            ]
            start_s = time.perf_counter()
            results = await tools.run(calls, ())
            took_s = time.perf_counter() - start_s
        await toolset.aclose()
    assert not any(result.is_error for result in results), results[0].text
    slowest_s = max(delays) + SUMMARY_S
    return {
        "open_page_s": round(took_s, 2),
        "open_page_slowest_s": slowest_s,
        "open_page_ratio": round(took_s / slowest_s, 3),
        "pages": num,
        "summaries": server.num_requests,
    }


@asynccontextmanager
async def _site(delays: list[float]) -> AsyncIterator[str]:
    from aiohttp import web

    body = "".join(f"<p>{'Some words of a page that is read. ' * 20}</p>" for _ in range(8))

    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(delays[int(request.match_info["number"])])
        return web.Response(text=f"<html><body>{body}</body></html>", content_type="text/html")

    app: Any = web.Application()
    app.router.add_get("/{number}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    _measure(Path(sys.argv[1]))
