"""Undo: the way back, through any edits, within its memory."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slipstream.tools.editor.history import History


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=8))
def test_edits_are_undone_back_to_the_first(states: list[bytes]) -> None:
    history = History()
    for before, after in pairwise(states):
        history.push("a", before, after)
    now = states[-1]
    for before in reversed(states[:-1]):
        edit = history.last("a")
        assert edit is not None and history.is_left_by(edit, now)
        now = edit.before(now)
        assert now == before
        history.drop_last("a")
    assert history.last("a") is None


def test_files_have_their_own_past() -> None:
    history = History()
    history.push("a", b"1", b"2")
    history.push("b", None, b"x")
    (a, b) = history.last("a"), history.last("b")
    assert a is not None and b is not None
    assert (a.created, b.created) == (False, True)
    assert not history.is_left_by(a, b"3")
    history.drop_last("a")
    assert (history.last("a"), history.last("b")) == (None, b)


def test_it_keeps_what_was_taken_away_and_forgets_the_oldest() -> None:
    history = History(max_bytes=10, max_edits=3)
    history.push("a", b"x" * 1000 + b"old" + b"y" * 1000, b"x" * 1000 + b"new" + b"y" * 1000)
    edit = history.last("a")
    assert edit is not None and edit.old == b"old"
    history.push("b", b"12345678", b"")
    assert history.last("a") is None
    for name in "cdef":
        history.push(name, b"", b"1")
    assert [history.last(name) is None for name in "bcdef"] == [True, True, False, False, False]
