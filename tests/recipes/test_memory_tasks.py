"""Documents as tasks: cut up, generated, and read from public formats."""

import json
from pathlib import Path
from typing import Any

import pytest

import slipstream as ss
from slipstream.recipes.memory.document import CHARS_PER_TOKEN, Sizes, document_task, sections_of
from slipstream.recipes.memory.needles import WORDS, Kind, Split, needle_tasks
from slipstream.recipes.memory.readers import contains, hotpotqa, musique, ruler

SMALL: dict[str, Any] = {"section_tokens": 10, "memory_tokens": 8}


def sections(task: ss.Task) -> list[str]:
    found = task.brief.resources["sections"]
    assert isinstance(found, list)
    return [str(section) for section in found]


def expected(task: ss.Task) -> list[str]:
    found = task.grading.spec["expected"]
    assert isinstance(found, list)
    return [str(answer) for answer in found]


# ---------------------------------------------------------------- documents


def test_a_text_is_cut_at_paragraphs_sentences_or_words_and_nothing_is_lost() -> None:
    text = "One two three four five.\n\nSix seven eight nine. Ten eleven twelve " + "x" * 100 + "   "
    cut = sections_of(text, Sizes(**SMALL))
    assert cut[:3] == ["One two three four five.", "Six seven eight nine.", "Ten eleven twelve " + "x" * 22]
    assert all(0 < len(section) <= 10 * CHARS_PER_TOKEN for section in cut)
    assert "".join("".join(cut).split()) == "".join(text.split())
    assert sections_of(" \n\n ", Sizes(**SMALL)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sections": []}, "document d is empty"),
        ({"sections": ["a", " \n"]}, "has an empty section"),
        ({"sections": ["a"] * 4}, "has more than 3 sections: raise max_sections or section_tokens"),
        ({"problem": " "}, "has no question"),
    ],
)
def test_a_bad_document_is_refused_before_anything_runs(changed: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"id": "d", "problem": "Who?", "sections": ["a"], "grader": ss.exact("b")}
    with pytest.raises(ss.ConfigError, match=said):
        document_task(sizes=Sizes(max_sections=3), **(given | changed))
    with pytest.raises(ss.ConfigError, match="section_tokens=0: give 1 or more"):
        Sizes(section_tokens=0)


def test_turns_grow_with_the_document_and_its_window_does_not() -> None:
    def made(num: int) -> ss.Task:
        return document_task(
            id="d", problem="Who?", sections=["a b c"] * num, grader=ss.exact("b"), sizes=Sizes(max_sections=100)
        )

    assert [made(num).brief.limits.turns - num for num in (1, 4, 64)] == [4, 4, 4]
    assert made(1).brief.limits.context_tokens == made(64).brief.limits.context_tokens
    assert made(1).sandbox is None


# ---------------------------------------------------------------- needles


@pytest.mark.parametrize("kind", ["needle", "needles", "hops"])
def test_what_is_asked_for_is_in_the_document_once_and_hops_come_in_order(kind: Kind) -> None:
    for task in needle_tasks(num=20, seed=3, kind=kind, sections=6, pairs=8, needles=3):
        assert len(sections(task)) == 6
        (answer,) = expected(task)
        lines = [line for section in sections(task) for line in section.split("\n")]
        assert len(lines) == 6 * 8
        asked = task.instruction.split("\n")[1:]
        if kind == "hops":
            assert task.instruction.startswith("Follow 3 lines from:")
            (word,), places = asked, []
            for _ in range(3):
                (place,) = [number for number, line in enumerate(lines) if line.startswith(f"{word} ")]
                places.append(place // 8)
                word = lines[place].split(" ")[1]
            assert places == sorted(set(places)), "each hop in a later section"
            assert answer.endswith(f" {word}")
        else:
            found = [[line for line in lines if line.startswith(f"{key} ")] for key in asked]
            assert answer == ",".join(line for (line,) in found)
            assert len(asked) == (3 if kind == "needles" else 1)


def test_the_same_arguments_give_the_same_tasks_and_no_held_out_document_is_trained_on() -> None:
    assert list(needle_tasks(num=5, seed=1)) == list(needle_tasks(num=5, seed=1))
    assert list(needle_tasks(num=5, seed=1)) != list(needle_tasks(num=5, seed=2))
    # So few documents are possible that any two seeds draw the same ones.
    small: dict[str, Any] = {"num": 300, "sections": 1, "pairs": 1, "needles": 1, "words": 5}
    every = {tuple(sections(task)) for task in needle_tasks(seed=0, **small)}
    splits: tuple[tuple[int, Split], ...] = ((1, "train"), (2, "held_out"))
    train, held_out = (
        {tuple(sections(task)) for task in needle_tasks(seed=seed, split=split, **small)} for seed, split in splits
    )
    assert train.isdisjoint(held_out)
    assert every == train | held_out
    assert {word for document in every for line in document for word in line.split()} == set(WORDS[:5])


def test_without_a_memory_the_whole_document_is_in_the_question() -> None:
    (with_memory,), (without,) = (needle_tasks(num=1, seed=1, window=window) for window in (False, True))
    assert without.instruction == f"{with_memory.instruction}\n\n" + "\n".join(sections(with_memory))
    assert without.brief.resources == {}
    assert with_memory.grading == without.grading


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num": 0}, "num=0: give 1 or more"),
        ({"kind": "haystack"}, "give one of needle, needles, hops, mixed"),
        ({"split": "test"}, "give one of all, train, held_out"),
        ({"kind": "hops", "needles": 4, "sections": 2}, "needles=4 hops do not fit into sections=2"),
        ({"kind": "needles", "needles": 5}, "needles=5: give 4 or fewer"),
        ({"pairs": 1, "needles": 2}, "pairs=1: give at least needles=2"),
        ({"pairs": 60}, "and at most 45 of words=48"),
        ({"words": 3}, "words=3: give at least 4 and at most 48"),
    ],
)
def test_impossible_needles_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ss.ConfigError, match=said):
        list(needle_tasks(**wrong))


# ---------------------------------------------------------------- readers

RULER = {
    "index": 7,
    "input": "Some special magic numbers are hidden within the following text.\n"
    + "The grass is green. " * 5
    + "One of the special magic numbers for plum is: 4711.\n"
    + "What is the special magic number for plum mentioned in the provided text?",
    "outputs": ["4711"],
    "length": 70,
    "answer_prefix": " The special magic number for plum mentioned in the provided text is",
}
HOTPOT = {
    "_id": "5a8b",
    "question": "Who wrote the opera that was first given in Brno?",
    "answer": "Janáček",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Jenůfa", 0]],
    "context": [
        ["Jenůfa", ["Jenůfa is an opera by Janáček.", " It was first given in Brno."]],
        ["Brno", ["Brno is a city."]],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Lake", "paragraph_text": "The lake lies in Bavaria.", "is_supporting": True},
        {"idx": 1, "title": "Land", "paragraph_text": "Bavaria's capital is Munich.", "is_supporting": True},
    ],
    "question": "What is the capital of the land that the lake lies in?",
    "question_decomposition": [],
    "answer": "Munich",
    "answer_aliases": ["München"],
    "answerable": True,
}


def written(path: Path, *rows: object, array: bool = False) -> str:
    path.write_text(json.dumps(rows) if array else "\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return str(path)


def test_ruler_asks_the_last_line_about_what_stands_before_it(tmp_path: Path) -> None:
    path = written(tmp_path / "niah.jsonl", RULER)
    (task,) = ruler(path=path, **SMALL)
    assert task.instruction == "What is the special magic number for plum mentioned in the provided text?"
    text = " ".join(sections(task))
    assert "for plum is: 4711." in text and "What is" not in text
    assert len(sections(task)) > 3
    assert (task.id, task.extra) == ("ruler-7", {"outputs": ["4711"], "match": "all"})


def test_rulers_reward_is_the_share_of_what_the_answer_contains(tmp_path: Path) -> None:
    path = written(tmp_path / "multi.jsonl", {**RULER, "outputs": ["4711", "Plum"]})
    ((every,), (any_one,)) = (ruler(path=path, match=match, **SMALL) for match in ("all", "part"))
    assert [contains(answer, every) for answer in ("none", "it is 4711", "plum 4711")] == [0.0, 0.5, 1.0]
    assert [contains(answer, any_one) for answer in ("none", "it is 4711")] == [0.0, 1.0]


@pytest.mark.parametrize("array", [False, True])
def test_hotpotqa_paragraphs_become_a_document(tmp_path: Path, array: bool) -> None:
    path = written(tmp_path / "hotpot.json", HOTPOT, {**HOTPOT, "_id": "other"}, array=array)
    first, second = hotpotqa(path=path)
    assert (first.id, second.id) == ("hotpotqa-5a8b", "hotpotqa-other")
    assert sections(first) == [
        "Jenůfa\nJenůfa is an opera by Janáček. It was first given in Brno.\n\nBrno\nBrno is a city."
    ]
    assert expected(first) == ["Janáček"]
    assert "Jenůfa" not in first.instruction
    (only,) = hotpotqa(path=path, num=1, metric="f1")
    assert only.grading.kind == "f1"


def test_other_rows_make_a_document_as_long_as_asked_for(tmp_path: Path) -> None:
    other = {**HOTPOT, "_id": "b", "context": [[f"Title {n}", [f"Fact number {n}. " * 3]] for n in range(30)]}
    path = written(tmp_path / "hotpot.jsonl", HOTPOT, other)
    (short, _), (long, _) = hotpotqa(path=path), hotpotqa(path=path, length_tokens=2_000, section_tokens=200)
    text = "\n\n".join(sections(long))
    assert len("\n\n".join(sections(short))) < 200
    assert 0.9 * 2_000 < len(text) / CHARS_PER_TOKEN < 1.2 * 2_000
    assert text.count("Jenůfa is an opera") == 1
    assert 9 <= len(sections(long)) <= 14
    again, _ = hotpotqa(path=path, length_tokens=2_000, section_tokens=200)
    assert again == long, "the same every time"
    with pytest.raises(ss.ConfigError, match="no other paragraphs to mix in"):
        list(hotpotqa(path=written(tmp_path / "one.jsonl", HOTPOT), length_tokens=1_000))


def test_musique_takes_aliases_and_leaves_out_what_cannot_be_answered(tmp_path: Path) -> None:
    path = written(tmp_path / "musique.jsonl", {**MUSIQUE, "id": "no", "answerable": False}, MUSIQUE)
    (task,) = musique(path=path)
    assert (task.id, expected(task)) == ("musique-2hop__1_2", ["Munich", "München"])
    assert sections(task) == ["Lake\nThe lake lies in Bavaria.\n\nLand\nBavaria's capital is Munich."]
    with pytest.raises(ss.ConfigError, match="no question that can be answered"):
        list(musique(path=written(tmp_path / "none.jsonl", {**MUSIQUE, "answerable": False})))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no rows"),
        ('{"index": 1}', "row 1 has no list of texts under `outputs`"),
        ('{"outputs": ["a"], "input": " "}', "row 1 has no text under `input`"),
        ('{"outputs": ["a"], "input": "only a question?"}', "document ruler-1 is empty"),
        ("[1, 2]", "row 1 is a int, and should be an object"),
        ('{"outputs": ["a"], "input": "text\\nq?"}\n{oops', "cannot be read after row 1"),
    ],
)
def test_files_that_are_something_else_are_refused_with_the_row(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(ss.ConfigError, match=said):
        list(ruler(path=str(tmp_path / "file")))


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/file.jsonl"])
def test_a_file_that_never_ends_is_not_begun(path: str) -> None:
    with pytest.raises(ss.ConfigError, match=f"{path} is no file"):
        list(ruler(path=path))


def test_a_document_without_an_end_is_refused_long_before_it(tmp_path: Path) -> None:
    row = {**RULER, "input": "word " * 200_000 + "\nWhat?"}
    with pytest.raises(ss.ConfigError, match="document ruler-7 has more than 50 sections"):
        list(ruler(path=written(tmp_path / "long.jsonl", row), max_sections=50, **SMALL))
