"""Text files and their bytes: whatever is edited, every other byte stays."""

import codecs
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slipstream.tools.editor.text import (
    NotText,
    TextFile,
    common_ends,
    decode,
    find_places,
    fold,
    insertion,
    line_at,
    line_start,
    replacement,
    split_lines,
)

PIECES = st.sampled_from(["a", "b", "ab ", "\t", "  ", "é", "€", "😀", "\n", "\r\n", "\r", "\x0c", "\u2028", "x = 1"])
TEXTS = st.lists(PIECES, max_size=30).map("".join)
LINE_FEEDS_ONLY = TEXTS.map(fold)
ODD_BYTES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"abc", b"\n", b"\r\n", b"\r", b"\t", "é€😀".encode(), b"\xff", b"\xc3", b"\xe2\x82", b"\x80"]
        ),
        st.binary(max_size=3),
    ),
    max_size=30,
).map(b"".join)
ENCODERS = st.sampled_from(
    [
        lambda text: text.encode(),
        lambda text: codecs.BOM_UTF8 + text.encode(),
        lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
        lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
        lambda text: b"# coding: latin-1\r\n" + text.encode("latin-1", "replace"),
        lambda text: b"#!x\n# -*- coding: gbk -*-\n" + text.encode("gbk", "replace"),
        lambda text: b"# coding: cp1252\n\x81\n" + text.encode("cp1252", "replace"),
    ]
)


def text_of(data: bytes) -> TextFile | None:
    try:
        return decode(data)
    except NotText:
        return None


@given(ODD_BYTES)
def test_what_is_read_as_text_is_written_back_the_same(data: bytes) -> None:
    file = text_of(data)
    assume(file is not None)
    assert file is not None
    assert file.bom + file.encode(file.text) == data
    assert file.splice(0, 0, "") == data


@given(ODD_BYTES, st.data())
def test_a_splice_of_any_bytes_keeps_all_others(data: bytes, draw: st.DataObject) -> None:
    file = text_of(data)
    assume(file is not None)
    assert file is not None
    start = draw.draw(st.integers(0, len(file.text)))
    end = draw.draw(st.integers(start, len(file.text)))
    after = file.splice(start, end, "new")
    kept_before = file.bom + file.encode(file.text[:start])
    kept_after = file.encode(file.text[end:])
    assert after == kept_before + file.encode("new") + kept_after
    assert data.startswith(kept_before) and data.endswith(kept_after)


@given(TEXTS, ENCODERS, st.data())
def test_a_replacement_changes_the_text_asked_for_and_no_other_byte(
    text: str, encode: object, draw: st.DataObject
) -> None:
    assert callable(encode)
    data = encode(text)
    assume(b"\0\0" not in data)
    file = decode(data)
    folded = file.folded
    start = draw.draw(st.integers(0, len(folded)))
    end = draw.draw(st.integers(start, len(folded)))
    old, new = folded[start:end], draw.draw(st.text("ab\n", max_size=8))
    change = replacement(file, start, old, new)
    after = decode(file.splice(change.start, change.end, change.new))
    assert (after.encoding, after.bom) == (file.encoding, file.bom) or "coding" in folded[:60]
    if after.encoding == file.encoding:
        assert after.folded == folded[:start] + new + folded[end:]
    first = len(file.bom) + len(file.encode(file.text[: change.start]))
    last = len(file.encode(file.text[change.end :]))
    spliced = file.splice(change.start, change.end, change.new)
    assert spliced[:first] == data[:first]
    assert spliced[len(spliced) - last :] == data[len(data) - last :]


@given(LINE_FEEDS_ONLY.filter(bool), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_a_file_with_one_line_ending_keeps_it_in_all_lines(folded: str, ending: str, draw: st.DataObject) -> None:
    assume("\n" in folded)
    file = decode(folded.replace("\n", ending).encode())
    assert file.folded == folded
    start = draw.draw(st.integers(0, len(folded)))
    end = draw.draw(st.integers(start, len(folded)))
    new = draw.draw(st.text("ab\n", max_size=8))
    change = replacement(file, start, folded[start:end], new)
    after = file.splice(change.start, change.end, change.new)
    assert after == (folded[:start] + new + folded[end:]).replace("\n", ending).encode()


@given(TEXTS, st.data())
def test_an_insertion_keeps_every_byte_and_makes_whole_lines(text: str, draw: st.DataObject) -> None:
    file = decode(text.encode())
    lines = split_lines(file.folded)
    after_line = draw.draw(st.integers(0, len(lines)))
    new = draw.draw(st.sampled_from(["x", "x\n", "x\ny", "\n"]))
    change = insertion(file, after_line, new)
    assert change.start == change.end
    after = file.splice(change.start, change.end, change.new)
    assert after[: len(text[: change.start].encode())] == text[: change.start].encode()
    assert after.endswith(text[change.start :].encode())
    assert split_lines(decode(after).folded) == lines[:after_line] + split_lines(new) + lines[after_line:]


@given(TEXTS)
def test_offsets_of_the_folded_text_lead_to_the_same_characters(text: str) -> None:
    file = decode(text.encode())
    for place, character in enumerate(file.folded):
        there = file.text[file.raw(place) : file.raw(place + 1)]
        assert there in ({"\n", "\r\n", "\r"} if character == "\n" else {character})
    assert file.raw(len(file.folded)) == len(text)


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        (b"\xef\xbb\xbfa", "utf-8", "a"),
        (b"\xff\xfea\0\n\0", "utf-16-le", "a\n"),
        (b"\xfe\xff\0a", "utf-16-be", "a"),
        (b"# coding: latin-1\n\xe9" * 1, "iso8859-1", "# coding: latin-1\né"),
        (
            b"#!/bin/x\n# vim: set fileencoding=cp1251 :\n\xff",
            "cp1251",
            "#!/bin/x\n# vim: set fileencoding=cp1251 :\nя",
        ),
        (b"x = 1\n# coding: latin-1\nabcdefghi\xe9", "utf-8", "x = 1\n# coding: latin-1\nabcdefghi\udce9"),
        (b"# coding: nonsense\nabc", "utf-8", "# coding: nonsense\nabc"),
        (b"# coding: rot13\nabc", "utf-8", "# coding: rot13\nabc"),
        (b"# coding: utf-7\n+AGE-", "utf-8", "# coding: utf-7\n+AGE-"),
        (b"# coding: unicode_escape\n\\n", "utf-8", "# coding: unicode_escape\n\\n"),
    ],
)
def test_encodings_are_found_by_mark_or_coding_line(data: bytes, encoding: str, text: str) -> None:
    file = decode(data)
    assert (file.encoding, file.text) == (encoding, text)


@pytest.mark.parametrize(
    "data", [b"a\0b", b"\x89PNG\r\n\x1a\n\0", b"\xff\xfe\0\0a\0\0\0", b"\xff\xfea", b"\xff\xfd\xfc\xfb ab"]
)
def test_what_is_binary_is_refused(data: bytes) -> None:
    with pytest.raises(NotText):
        decode(data)


def test_new_lines_end_as_those_in_their_place_did() -> None:
    file = decode(b"a\r\nb\nc\rd\n")
    change = replacement(file, 2, "b\nc\nd\n", "x\ny\nz\nw\n")
    assert file.splice(change.start, change.end, change.new) == b"a\r\nx\ny\rz\rw\n"


def test_what_old_and_new_text_share_keeps_its_endings() -> None:
    file = decode(b"a\r\nb\nc\r")
    change = replacement(file, 0, "a\nb\nc\n", "a\nB\nc\n")
    assert file.splice(change.start, change.end, change.new) == b"a\r\nB\nc\r"


@given(st.text("ab", max_size=9), st.text("ab", max_size=9))
@example("aa", "aaa")
def test_common_ends_are_the_longest_that_do_not_overlap(one: str, other: str) -> None:
    head, tail = common_ends(one, other)
    assert one[:head] == other[:head] and one[len(one) - tail :] == other[len(other) - tail :]
    assert head + tail <= min(len(one), len(other))
    assert one[head : head + 1] != other[head : head + 1] or head == min(len(one), len(other))


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3))
def test_places_are_all_there_are(text: str, wanted: str) -> None:
    assert find_places(text, wanted, 100) == [found.start() for found in re.finditer(f"(?={wanted})", text)]


@given(LINE_FEEDS_ONLY)
def test_lines_and_offsets_agree(folded: str) -> None:
    for number, line in enumerate(split_lines(folded)):
        start = line_start(folded, number)
        assert folded[start:].startswith(line)
        assert line_at(folded, start) == number + 1


@pytest.mark.parametrize(
    ("text", "start", "old", "new", "after"),
    [
        ("\ra\n", 1, "a", "", "\r\n\n"),
        ("x\ra\nb", 2, "a", "", "x\r\n\nb"),
        ("x\ra\nb", 2, "a", "c\n", "x\rc\r\n\nb"),
    ],
)
def test_a_carriage_return_and_a_line_feed_that_meet_stay_two_line_ends(
    text: str, start: int, old: str, new: str, after: str
) -> None:
    file = decode(text.encode())
    change = replacement(file, start, old, new)
    assert file.splice(change.start, change.end, change.new) == after.encode()
