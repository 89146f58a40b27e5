from __future__ import annotations

from pathlib import Path

from slipstream.bench.codesearch import run


def test_the_figures_of_a_small_repository(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"m{number}.py").write_text(f"def f{number}():\n    return f{number}()\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    figures = run(tmp_path, num_queries=3, num_edits=2)
    assert {"first_s", "query_ms_p50", "after_edit_ms", "rollout_mb", "files"} <= figures.keys()
    assert (figures["files"], figures["definitions"], figures["after_edit_is_correct"]) == (4, 4, True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
