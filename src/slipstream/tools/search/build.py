"""Makes a local index of documents.

Input: a folder or a JSONL file. Output: a folder that `LocalIndex` reads. Invariants: the index appears complete or
not at all; a build that was stopped goes on where it was, if the source and the settings are the same; one process at
a time makes an index.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from slipstream.atomic import atomic_file, replace_folder
from slipstream.errors import ConfigError
from slipstream.hub import ENCODERS, FetchProgress, find_encoder, get_encoder
from slipstream.tools.search.corpus import Corpus, fingerprint, read_documents
from slipstream.tools.search.encoder import TextEncoder
from slipstream.tools.search.index import ABOUT, CORPUS, POSTINGS, VECTORS, VERSION, AboutIndex, import_bm25s
from slipstream.tools.search.threads import one_blas_thread

DOCUMENTS_PER_COMMIT = 500
PASSAGES_PER_COMMIT = 512
PASSAGES_PER_TASK = 32
_STATE, _LOCK = "state.json", "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """`BuildProgress(doing="embedding passages", num_done=512, num_total=9_000)`."""

    doing: str
    num_done: int
    num_total: int | None


OnBuild = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    version: int
    source: str
    encoder: str
    """With `source`, what a stopped build has to have in common with one that resumes it."""
    is_read: bool = False
    num_embedded: int = 0


def make_index(
    source: str | Path,
    out: str | Path,
    *,
    encoder: str = "minilm",
    force: bool = False,
    reuse: bool = False,
    on_progress: OnBuild = lambda progress: None,
) -> AboutIndex:
    """Index the documents of `source`, a folder or a .jsonl file, in the folder `out`, for `search_documents`.

    `encoder` is fetched if it is not there; with `encoder=""` only words are searched, not meaning. A build that was
    stopped goes on where it was. With `force` what is at `out` is replaced, and with `reuse` it is returned if it was
    made of this source."""
    source, out = Path(source).expanduser(), Path(out).expanduser()
    import_bm25s()
    if not source.exists():
        raise ConfigError(f"there is no {source}: name a folder with documents, or a .jsonl file")
    wanted = _State(version=VERSION, source=fingerprint(source), encoder=encoder)
    if reuse and (made := _made_before(out, wanted)):
        return made
    if out.exists() and not (force or reuse):
        raise ConfigError(f"{out} is already there: replace it with --force, or choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / ABOUT).is_file():
        raise ConfigError(f"{out} holds something that is no index: choose another --out")
    with _building(out, wanted, waits=reuse) as (folder, state):
        if reuse and (made := _made_before(out, wanted)):  # another process was faster
            shutil.rmtree(folder)
            return made
        with_encoder = TextEncoder(_encoder_folder(encoder, on_progress)) if encoder else None
        corpus = Corpus(folder / CORPUS, writable=True)
        try:
            if not state.is_read:
                _read(source, corpus, on_progress)
                state = _kept(folder, state, is_read=True)
            if with_encoder is not None:
                _embed(folder, state, corpus, with_encoder, on_progress)
            _count_words(folder, corpus, on_progress)
            about = AboutIndex(
                version=VERSION,
                encoder=encoder,
                num_documents=corpus.num_documents,
                num_passages=corpus.num_passages,
                num_dimensions=with_encoder.num_dimensions if with_encoder else 0,
                source=wanted.source,
            )
        finally:
            corpus.close()
        (folder / _STATE).unlink()
        (folder / _LOCK).unlink()
        (folder / ABOUT).write_bytes(about.to_bytes())
        replace_folder(folder, out)
    return about


def _made_before(out: Path, wanted: _State) -> AboutIndex | None:
    """The index at `out`, if it is what is wanted."""
    try:
        made = AboutIndex.read(out)
    except ConfigError:
        return None
    return made if (made.source, made.encoder) == (wanted.source, wanted.encoder) else None


def _encoder_folder(name: str, on_progress: OnBuild) -> Path:
    if name not in ENCODERS:
        return find_encoder(name)

    def show(progress: FetchProgress) -> None:
        done_mb, total_mb = progress.num_done // 1_000_000, progress.num_total // 1_000_000
        on_progress(BuildProgress(doing=f"{progress.doing} (MB)", num_done=done_mb, num_total=total_mb))

    return get_encoder(name, on_progress=show)


@contextmanager
def _building(out: Path, wanted: _State, *, waits: bool) -> Iterator[tuple[Path, _State]]:
    """The folder in which the index is made, which stays if the build is stopped, and how far the build had got."""
    folder = out.with_name(f".{out.name}.building")
    descriptor = _locked(folder, out, waits=waits)
    try:
        try:
            state = _State(**json.loads((folder / _STATE).read_bytes()))
        except (OSError, ValueError, TypeError):
            state = None
        if state is None or (state.version, state.source, state.encoder) != (
            wanted.version,
            wanted.source,
            wanted.encoder,
        ):
            for path in folder.iterdir():
                if path.name != _LOCK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            state = _kept(folder, wanted)
        yield folder, state
    finally:
        os.close(descriptor)


def _locked(folder: Path, out: Path, *, waits: bool) -> int:
    """The descriptor of the lock of the folder, which is made if it is not there."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # between the two another process was done with the folder
            continue
        except OSError as raised:
            raise ConfigError(f"{folder} cannot be written ({raised.strerror}): choose another --out") from raised
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(descriptor), (folder / _LOCK).stat()):
                return descriptor
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"another process is making {out}: wait until it is done") from None
        except FileNotFoundError:  # the lock is that of a folder that is gone
            os.close(descriptor)


def _kept(folder: Path, state: _State, **changes: object) -> _State:
    state = _State(**{**asdict(state), **changes})
    with atomic_file(folder / _STATE) as path:
        path.write_text(json.dumps(asdict(state)))
    return state


def _read(source: Path, corpus: Corpus, on_progress: OnBuild) -> None:
    num_done = corpus.num_documents
    rest = islice(read_documents(source), num_done, None)
    while some := list(islice(rest, DOCUMENTS_PER_COMMIT)):
        corpus.add(some)
        num_done += len(some)
        on_progress(BuildProgress(doing="reading documents", num_done=num_done, num_total=None))
    if not corpus.num_passages:
        raise ConfigError(f"{source} holds no text: name a source with documents")


def _embed(folder: Path, state: _State, corpus: Corpus, encoder: TextEncoder, on_progress: OnBuild) -> None:
    import numpy

    num_total, path = corpus.num_passages, folder / VECTORS
    shape = (num_total, encoder.num_dimensions)
    if path.is_file() and state.num_embedded:
        vectors = numpy.lib.format.open_memmap(path, mode="r+")
    else:
        state = _kept(folder, state, num_embedded=0)
        vectors = numpy.lib.format.open_memmap(path, mode="w+", dtype=numpy.float32, shape=shape)
    with one_blas_thread(), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for start in range(state.num_embedded, num_total, PASSAGES_PER_COMMIT):
            stop = min(num_total, start + PASSAGES_PER_COMMIT)
            texts = [f"{each.title}\n{each.text}".strip() for each in corpus.passages(start, stop)]
            parts = [texts[place : place + PASSAGES_PER_TASK] for place in range(0, len(texts), PASSAGES_PER_TASK)]
            vectors[start:stop] = numpy.concatenate(list(threads.map(encoder.encode, parts)))
            vectors.flush()
            state = _kept(folder, state, num_embedded=stop)
            on_progress(BuildProgress(doing="embedding passages", num_done=stop, num_total=num_total))


def _count_words(folder: Path, corpus: Corpus, on_progress: OnBuild) -> None:
    num_total = corpus.num_passages
    on_progress(BuildProgress(doing="counting words", num_done=0, num_total=num_total))
    bm25s = import_bm25s()
    texts = [f"{each.title}\n{each.text}" for each in corpus.passages(0, num_total)]
    tokens = bm25s.tokenize(texts, stopwords="en", show_progress=False)
    counted = bm25s.BM25()
    counted.index(tokens, show_progress=False)
    counted.save(folder / POSTINGS, show_progress=False)
    on_progress(BuildProgress(doing="counting words", num_done=num_total, num_total=num_total))
