"""Indexes: made, resumed, asked, refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.tools.search.base import Hit
from slipstream.tools.search.build import BuildProgress, make_index
from slipstream.tools.search.corpus import passages_of
from slipstream.tools.search.index import ABOUT, LocalIndex, fused

from .index_stage import DOCUMENTS, made_index, make_encoder, write_rows


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> LocalIndex:
    return LocalIndex(made_index(tmp_path_factory.mktemp("made")))


def found(index: LocalIndex, query: str, limit: int = 4) -> list[Hit]:
    (hits,) = index.search([query], limit=limit)
    return hits


def test_words_and_meaning_are_fused_by_rank(index: LocalIndex) -> None:
    hits = found(index, DOCUMENTS["d-berlin"])
    assert hits[0].docid == "d-berlin"
    assert hits[0].snippet == DOCUMENTS["d-berlin"]
    assert hits[0].score == pytest.approx(1 / 61 + 1 / 61, abs=1e-6)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert fused([[7, 8], [8]]) == {7: 1 / 61, 8: 1 / 62 + 1 / 61}


def test_a_query_gets_the_same_answer_beside_others(index: LocalIndex) -> None:
    queries = ["capital of germany", "sun", "a word that is nowhere", "cats"]
    assert index.search(queries, limit=3) == [index.search([query], limit=3)[0] for query in queries]


def test_without_a_known_word_meaning_alone_decides(index: LocalIndex) -> None:
    assert [hit.score for hit in found(index, "xyzzy")] == [round(1 / (60 + rank), 6) for rank in (1, 2, 3, 4)]


def test_documents_are_read_by_their_id(index: LocalIndex) -> None:
    assert index.text("d-cats") == DOCUMENTS["d-cats"]
    assert index.text("d-none") is None


def test_a_document_of_many_passages_is_found_once(tmp_path: Path) -> None:
    long = "\n\n".join(f"The river number {number} is near Paris." + " It is small." * 40 for number in range(6))
    source = write_rows(tmp_path / "rows.jsonl", {"d-long": long, **DOCUMENTS})
    about = make_index(source, tmp_path / "index", encoder="")
    assert about.num_passages > about.num_documents == 5
    hits = found(LocalIndex(tmp_path / "index"), "river paris")
    assert [hit.docid for hit in hits] == ["d-long", "d-paris"]


def test_passages_cover_a_text_and_end_where_it_pauses() -> None:
    text = "First paragraph. " * 20 + "\n\n" + "Second one, with words. " * 40
    places = passages_of(text, max_chars=400)
    assert "".join(text[start:stop] for start, stop in places) == text
    assert all(stop - start <= 400 for start, stop in places)
    assert text[slice(*places[0])].endswith("\n\n")
    assert passages_of("x" * 1_000, max_chars=400) == [(0, 400), (400, 800), (800, 1_000)]


def test_a_folder_of_files_is_read(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    (source / "more").mkdir(parents=True)
    (source / "a.md").write_text("# Title of A\n\nParis is near.")
    (source / "b.txt").write_text("Berlin is near.")
    (source / "c.jpg").write_bytes(b"\xff\xd8")
    page = "<html><head><title>Cats</title></head><body><nav>Menu</nav><p>Cats sleep.</p></body></html>"
    (source / "more" / "d.html").write_text(page)
    make_index(source, tmp_path / "index", encoder="")
    index = LocalIndex(tmp_path / "index")
    assert [(hit.docid, hit.title) for hit in found(index, "cats sleep")] == [("more/d.html", "Cats")]
    assert [(hit.docid, hit.title) for hit in found(index, "paris")] == [("a.md", "Title of A")]
    assert "Cats sleep." in (index.text("more/d.html") or "")
    assert index.text("c.jpg") is None


class Stopped(Exception):
    pass


def test_a_build_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    rows = {f"d-{number}": f"The river {number} is near Paris." for number in range(1_200)}
    source, encoder = write_rows(tmp_path / "rows.jsonl", rows), str(make_encoder(tmp_path / "encoder"))
    out = tmp_path / "index"

    def stop_at(doing: str, num: int) -> list[BuildProgress]:
        seen: list[BuildProgress] = []

        def show(progress: BuildProgress) -> None:
            seen.append(progress)
            if progress.doing == doing and progress.num_done >= num:
                raise Stopped

        with pytest.raises(Stopped):
            make_index(source, out, encoder=encoder, on_progress=show)
        return seen

    stop_at("reading documents", 500)
    assert not out.exists()
    second = stop_at("embedding passages", 512)
    assert [each.num_done for each in second] == [1_000, 1_200, 512], "500 documents were there already"
    third: list[BuildProgress] = []
    make_index(source, out, encoder=encoder, on_progress=third.append)
    assert [each.num_done for each in third] == [1_024, 1_200, 0, 1_200], "512 passages were there already"
    whole = make_index(source, tmp_path / "other", encoder=encoder)
    assert (tmp_path / "other" / "vectors.npy").read_bytes() == (out / "vectors.npy").read_bytes()
    assert whole.num_documents == 1_200
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_source_starts_over(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "rows.jsonl"), tmp_path / "index"

    def stop(progress: BuildProgress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        make_index(source, out, encoder="", on_progress=stop)
    write_rows(source, {"d-new": "Something else."})
    assert make_index(source, out, encoder="").num_documents == 1


def test_an_index_of_the_same_source_is_reused_and_another_replaced(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "rows.jsonl"), tmp_path / "index"
    seen: list[BuildProgress] = []
    first = make_index(source, out, encoder="", reuse=True, on_progress=seen.append)
    num_seen = len(seen)
    assert make_index(source, out, encoder="", reuse=True, on_progress=seen.append) == first
    assert len(seen) == num_seen
    write_rows(source, {"d-new": "Something else."})
    assert make_index(source, out, encoder="", reuse=True).num_documents == 1


def test_processes_that_want_the_same_index_make_it_once(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "rows.jsonl"), tmp_path / "index"
    seen: list[BuildProgress] = []
    with ThreadPoolExecutor(4) as threads:
        wanted = [
            threads.submit(make_index, source, out, encoder="", reuse=True, on_progress=seen.append) for _ in "1234"
        ]
        assert len({one.result() for one in wanted}) == 1
    assert sum(each.doing == "reading documents" for each in seen) == 1


def test_a_second_maker_is_told_of_the_first(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "rows.jsonl"), tmp_path / "index"

    def make_another(progress: BuildProgress) -> None:
        with pytest.raises(ConfigError, match=r"another process is making .*index: wait until it is done"):
            make_index(source, out, encoder="")

    make_index(source, out, encoder="", on_progress=make_another)


def test_an_index_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = made_index(tmp_path)
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps({**about, "version": 99}))
    with pytest.raises(ConfigError, match=r"is of version 99, and this Slipstream reads version 1: make it"):
        LocalIndex(folder)


def test_bad_input_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no index: make one with slipstream index make SOURCE --out "):
        LocalIndex(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no .*nowhere: name a folder with documents"):
        make_index(tmp_path / "nowhere", tmp_path / "index", encoder="")
    source = tmp_path / "rows.jsonl"
    for line, problem in (
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is no object"),
        ('{"docid": "a"}', 'line 1 has no "docid" or no "text"'),
        ('{"docid": "a", "text": "b"}\n' * 2, 'two documents have the docid "a"'),
        ("\n", "holds no text"),
    ):
        source.write_text(line)
        with pytest.raises(ConfigError, match=problem):
            make_index(source, tmp_path / "index", encoder="")
    write_rows(source)
    with pytest.raises(ConfigError, match=r'there is no encoder "minilmm".*did you mean "minilm"'):
        make_index(source, tmp_path / "index", encoder="minilmm")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    with pytest.raises(ConfigError, match="holds something that is no index"):
        make_index(source, tmp_path / "precious", encoder="", force=True)
