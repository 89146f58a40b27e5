"""Text made safe for a terminal."""

import logging

from slipstream.printable import PrintableFormatter, one_line, printable


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert printable("a\tb\nc\x1b]0;x\x07\r\x9b\ud800ü✓") == "a\tb\nc\\x1b]0;x\\x07\\r\\x9b\\ud800ü✓"


def test_changes_of_direction_and_invisible_marks_are_spelled_out() -> None:
    assert printable("a\u202eb\u2066c\u2069d\u200fe") == "a\\u202eb\\u2066c\\u2069d\\u200fe"
    assert printable("x\u2028y\U000e0041z") == "x\\u2028y\\U000e0041z"


def test_text_in_any_script_stays_as_it_is() -> None:
    for text in ("naïve – ok", "日本語", "עברית", "العربية", "👩\u200d🔬"):
        assert printable(text) == text


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\tc\r\n\x1b[2J") == "a\\nb\\tc\\r\\n\\x1b[2J"


def test_log_lines_are_printable_tracebacks_included() -> None:
    try:
        raise ValueError("bad \x1b[31m id")
    except ValueError as raised:
        record = logging.LogRecord(
            "x", logging.WARNING, "x.py", 1, "task %s", ("\x1b[2J",), (type(raised), raised, raised.__traceback__)
        )
    told = PrintableFormatter("%(message)s").format(record)
    assert "\x1b" not in told
    assert told.startswith("task \\x1b[2J\nTraceback") and "bad \\x1b[31m id" in told
