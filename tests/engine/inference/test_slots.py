"""Slots: assignment, reuse and eviction."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.inference.slots import Slot, SlotAssignment, SlotTable, common_prefix
from slipstream.types import token_ids


def placed(table: SlotTable, ids: list[int], session: str = "", salt: str = "") -> SlotAssignment:
    found = table.place(token_ids(ids), session=session, salt=salt)
    assert found is not None
    return found


def finish(table: SlotTable, slot: Slot, sampled: list[int]) -> None:
    """All but the last sampled token went through the model."""
    slot.tokens.extend(sampled)
    slot.num_computed = len(slot.tokens) - 1
    table.release(slot)


def ran(table: SlotTable, ids: list[int], session: str = "", salt: str = "") -> Slot:
    slot = placed(table, ids, session, salt).slot
    finish(table, slot, [99])
    return slot


def test_a_session_goes_on_in_its_slot() -> None:
    table = SlotTable(3)
    ran(table, [7, 8], "other")
    first = ran(table, [1, 2, 3], "a")
    again = placed(table, [1, 2, 3, 99, 4, 5], "a")
    assert (again.slot, again.num_reused, again.copy_from) == (first, 3, None)
    assert list(again.slot.tokens) == [1, 2, 3, 99, 4, 5]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    table = SlotTable(1)
    ran(table, [1, 2, 3], "a")
    again = placed(table, [1, 2, 3], "a")
    assert (again.num_reused, again.slot.num_missing) == (2, 1)


def test_a_fork_copies_into_an_empty_slot_and_takes_its_own_over_if_none_is_empty() -> None:
    table = SlotTable(2)
    trunk = ran(table, [1, 2, 3, 4], "a")
    fork = placed(table, [1, 2, 9, 9], "a")
    assert (fork.slot.index, fork.num_reused, fork.copy_from) == (1, 2, trunk.index)
    finish(table, fork.slot, [5])
    other = placed(table, [1, 2, 3, 8], "a")
    assert (other.slot, other.num_reused, other.copy_from) == (trunk, 3, None)
    assert table.num_evicted == 0


def test_the_slot_used_longest_ago_gives_way() -> None:
    table = SlotTable(2)
    old, new = ran(table, [1], "old"), ran(table, [2], "new")
    assert placed(table, [3], "third").slot is old
    assert table.num_evicted == 1
    assert placed(table, [4], "fourth").slot is new
    assert table.place(token_ids([5]), session="fifth", salt="") is None


def test_coming_back_makes_a_session_recent() -> None:
    table = SlotTable(2)
    first, second = ran(table, [1, 1], "first"), ran(table, [2, 2], "second")
    finish(table, placed(table, [1, 1, 99, 3], "first").slot, [4])
    assert placed(table, [5], "third").slot is second
    assert first.session == "first"


def test_a_session_that_is_over_gives_way_first_and_is_no_eviction() -> None:
    table = SlotTable(3)
    old, new, other = ran(table, [1], "old"), ran(table, [2], "new"), ran(table, [3], "other")
    table.end_session("new")
    assert placed(table, [4], "fourth").slot is new
    assert table.num_evicted == 0
    table.end_session("new")  # the slot is another's by now
    finish(table, new, [5])
    assert placed(table, [6], "fifth").slot is old
    assert (table.num_evicted, other.session) == (1, "other")


def test_what_a_session_that_is_over_left_still_serves_others() -> None:
    table = SlotTable(3)
    trunk = ran(table, [1, 2, 3], "a")
    table.end_session("a")
    beside = placed(table, [1, 2, 3, 4], "b")
    assert (beside.slot.index, beside.num_reused, beside.copy_from) == (1, 3, trunk.index)


def test_a_fork_takes_the_slot_of_a_session_that_is_over_before_its_own() -> None:
    table = SlotTable(2)
    trunk, done = ran(table, [1, 2, 3, 4], "a"), ran(table, [7], "done")
    table.end_session("done")
    fork = placed(table, [1, 2, 9, 9], "a")
    assert (fork.slot, fork.num_reused, fork.copy_from) == (done, 2, trunk.index)


def test_a_slot_whose_session_ends_while_it_is_busy_gives_way_once_it_is_idle() -> None:
    table = SlotTable(2)
    first = placed(table, [1], "first").slot
    ran(table, [2], "second")
    table.end_session("first")
    assert placed(table, [3], "third").slot is not first
    finish(table, first, [9])
    assert placed(table, [4], "fourth").slot is first


def test_slots_without_a_session_are_ended_by_nobody() -> None:
    table = SlotTable(2)
    named, nameless = ran(table, [1], "named"), ran(table, [2])
    table.end_session("")
    assert placed(table, [3], "third").slot is named
    assert nameless.session == ""


def test_a_busy_slot_gives_its_prefix_and_is_not_taken() -> None:
    table = SlotTable(2)
    running = placed(table, [1, 2, 3, 4], "a").slot
    running.num_computed = 4
    beside = placed(table, [1, 2, 3, 9], "a")
    assert (beside.slot.index, beside.num_reused, beside.copy_from) == (1, 3, 0)


def test_a_prompt_waits_for_a_prefix_that_is_being_computed() -> None:
    table = SlotTable(3)
    ids = list(range(100))
    first = placed(table, ids, "a").slot
    assert table.place(token_ids(ids), session="b", salt="") is None
    assert placed(table, [5, *ids], "c").num_reused == 0
    first.num_computed = 100
    assert placed(table, ids, "b").num_reused == 99


def test_salts_and_tables_without_reuse_share_nothing() -> None:
    table = SlotTable(2)
    ran(table, [1, 2, 3], "a", salt="v1")
    assert placed(table, [1, 2, 3, 99], "a", salt="v2").num_reused == 0
    table = SlotTable(2, reuse=False)
    ran(table, [1, 2, 3], "a")
    assert placed(table, [1, 2, 3, 99], "a").num_reused == 0
    long = list(range(100))
    assert [SlotTable(2, reuse=False).place(token_ids(long), session="", salt="") is None for _ in "ab"] == [False] * 2


def test_forgetting_empties_the_idle_and_leaves_the_busy_to_be_computed_anew() -> None:
    table = SlotTable(2)
    ran(table, [1, 2, 3], "a")
    busy = placed(table, [7, 8, 9], "b").slot
    busy.num_computed = 3
    table.invalidate()
    assert (busy.busy, busy.num_missing) == (True, 3)
    assert placed(table, [1, 2, 3, 99], "a").num_reused == 0


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.integers(0, 9))
def test_the_common_prefix_is_what_it_says(first: list[int], second: list[int], most: int) -> None:
    num = common_prefix(array("i", first), array("i", second), most)
    assert first[:num] == second[:num]
    assert num <= most
    assert num in (most, len(first), len(second)) or first[num] != second[num]
