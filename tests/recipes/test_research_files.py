"""BrowseComp-Plus and HLE: files written in their form, and the benchmark's own files made from a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slipstream as ss
from slipstream.recipes.research.browsecomp import (
    browsecomp_tasks,
    decrypted,
    encrypted,
    read_queries,
    read_relevant,
    recall,
    retrieved_docids,
    run_file,
    write_run_files,
)
from slipstream.recipes.research.hle import hle_tasks

CANARY = "a canary of the tests"
ROW: dict[str, Any] = {
    "query_id": "17",
    "query": "Which town's bridge collapsed in 1931?",
    "answer": "Zürich-West",
    "gold_docs": [{"docid": "d-bridge", "text": "A bridge."}],
    "evidence_docs": [{"docid": "d-bridge", "text": "A bridge."}, {"docid": "d-town", "text": "A town."}],
    "negative_docs": [{"docid": "d-cats", "text": "Cats."}],
}
CORPUS = {"d-bridge": "The bridge of Zürich-West collapsed in 1931.", "d-town": "A town.", "d-cats": "Cats sleep."}


def write_lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_are_decrypted_as_the_benchmark_encrypts_them(tmp_path: Path) -> None:
    # sha256("abc") begins ba 78 16 bf: "Hi" is 48 69, and so f2 11.
    assert decrypted("8hE=", "abc") == "Hi" and encrypted("Hi", "abc") == "8hE="
    row = encrypted(ROW, CANARY)
    assert row["query_id"] == "17" and "Zürich" not in json.dumps(row, ensure_ascii=False)
    assert row["gold_docs"][0]["docid"] != "d-bridge"
    (query,) = read_queries(Path(write_lines(tmp_path / "queries.jsonl", row)), canary=CANARY)
    assert (query.question, query.answer) == (ROW["query"], ROW["answer"])
    assert query.evidence_docids == ("d-bridge", "d-town") and query.negative_docids == ("d-cats",)


def test_a_wrong_canary_is_noticed(tmp_path: Path) -> None:
    path = Path(write_lines(tmp_path / "queries.jsonl", encrypted(ROW, CANARY)))
    with pytest.raises(ss.ConfigError, match=r"queries.jsonl, line 1 is no query .*: check the canary"):
        read_queries(path, canary="another")
    with pytest.raises(ss.ConfigError, match="check the canary"):
        read_queries(Path(write_lines(tmp_path / "plain.jsonl", ROW)), canary=CANARY)
    with pytest.raises(ss.ConfigError, match="there is no file"):
        read_queries(tmp_path / "nowhere.jsonl")


def agent(scene: ss.ScriptedCall) -> ss.Line:
    """Searches twice, reads what comes first, and answers. Asked to judge, it compares the answer's second line."""
    text = scene.messages[0].content
    if text.startswith("You grade"):
        return judged(text)
    if scene.num_calls < 2:
        return ss.act("search", query=["bridge collapsed 1931", "xyzzy"][scene.num_calls])
    if scene.num_calls == 2:
        return ss.act("get_document", docid="d-bridge")
    town = scene.messages[-1].content.split()[3]
    return ss.act("finish", answer=f"Explanation: see [d-bridge]\nExact Answer: {town}\nConfidence: 80%")


def judged(text: str) -> str:
    code = text.rpartition("case: ")[2].split()[0]
    said = text.partition("Exact Answer: ")[2].splitlines()[0]
    correct = "yes" if f"[reference {code}]\n{said}\n" in text else "no"
    lines = ("extracted_final_answer: " + said, f"**correct_answer:** {ROW['answer']}", "reasoning: compared")
    return "\n".join((f"case: {code}", *lines, f"correct: {correct}", "**confidence:** 80%"))


def evaluated(tmp_path: Path) -> ss.EvalResult:
    corpus = write_lines(tmp_path / "corpus.jsonl", *({"docid": key, "text": text} for key, text in CORPUS.items()))
    ss.make_index(corpus, tmp_path / "index", encoder="")
    path = write_lines(tmp_path / "queries.jsonl", encrypted(ROW, CANARY))
    tasks = list(browsecomp_tasks(path=path, index=str(tmp_path / "index"), canary=CANARY))
    return ss.evaluate(tasks, model=agent, samples=2, runs=tmp_path / "runs", quiet=True)


def test_a_query_is_searched_judged_and_written_as_the_benchmark_reads_it(tmp_path: Path) -> None:
    result = evaluated(tmp_path)
    assert result.mean_reward == 1.0
    rollout = result.rollouts()[0]
    assert rollout.verdict is not None and rollout.verdict.components["confidence"] == 0.8
    assert retrieved_docids(rollout) == ("d-bridge",)
    answer = "Explanation: see [d-bridge]\nExact Answer: Zürich-West\nConfidence: 80%"
    assert run_file(rollout) == {
        "query_id": "17",
        "tool_call_counts": {"search": 2, "get_document": 1},
        "status": "completed",
        "retrieved_docids": ["d-bridge"],
        "result": [{"type": "output_text", "output": answer}],
    }
    assert write_run_files(result.run, tmp_path / "files") == 1
    assert json.loads((tmp_path / "files" / "run_17.json").read_text()) == run_file(rollout)


def test_recall_is_against_the_relevance_lists(tmp_path: Path) -> None:
    lists = tmp_path / "qrels.txt"
    lists.write_text("17 Q0 d-bridge 1\n17 Q0 d-town 1\n17 Q0 d-cats 0\n18 Q0 d-x 1\n\n")
    relevant = read_relevant(lists)
    assert relevant == {"17": {"d-bridge", "d-town"}, "18": {"d-x"}}
    assert recall({"17": ["d-bridge", "d-cats"], "18": ["d-x"], "19": ["d-y"]}, relevant) == 0.75
    assert recall({"19": ["d-y"]}, relevant) == 0.0
    lists.write_text("17 d-bridge")
    with pytest.raises(ss.ConfigError, match="line 1 is no relevance: write QUERY Q0 DOCID 1"):
        read_relevant(lists)


def test_questions_in_the_form_of_hle(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "What is it?", "image": "", "answer": "X", "answer_type": "exactMatch"},
        {"id": "b", "question": "Which?", "image": "", "answer": "C", "answer_type": "multipleChoice"},
        {
            "id": "c",
            "question": "Seen?",
            "image": "data:image/png,A",
            "answer": "Y",
            "answer_type": "exactMatch",
        },
    ]
    path = write_lines(tmp_path / "hle.jsonl", *rows)
    first, second = hle_tasks(path=path, web="serper")
    assert (first.id, second.id) == ("a", "b")
    assert "the letter of the right choice" in second.brief.instruction
    assert first.brief.resources["pages"] == {
        "blocked": ["huggingface.co", "lastexam.ai"],
        "blocked_phrases": ["What is it?"],
    }
    assert "open_page" in first.brief.tools
    with pytest.raises(ss.ConfigError, match=r'line 1: answer_type "essay": known are exactMatch, multipleChoice'):
        list(hle_tasks(path=write_lines(tmp_path / "x.jsonl", {**rows[0], "answer_type": "essay"}), web="serper"))
