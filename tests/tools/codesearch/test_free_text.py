"""Text in a user's words: reports, messages, tracebacks, and strings that go over several lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipstream.tools.codesearch import CodeSearch, Mode, Store
from slipstream.tools.codesearch.answers.ranking import asks_for_tests

from .small_repository import opened, written

FILES: dict[str, str | bytes] = {
    "shop/cart.py": '''"""The cart."""


class Cart:
    def add(self, item, amount):
        if amount < 1:
            raise ValueError(
                f"An item needs an amount of "
                f"at least one, and {item} "
                'has less'
            )
        # Prices are rounded half to even,
        # as banks do.
        self.items.append((item, amount))
''',
    "shop/shipping/rates.py": "def shipping_rate(weight, country):\n    return weight * COUNTRIES[country]\n",
    "shop/mail.py": "class Mailer:\n    def send(self, order):\n        return self.render(order.items)\n",
    "shop/page.js": 'function page() {\n  throw new Error("no " +\n    "such page");\n}\n',
    "tests/test_cart.py": "from shop.cart import Cart\n\n\ndef test_amount_of_items():\n"
    '    message = "An item needs an amount of at least one"\n    assert message\n    Cart().add("x", 0)\n' * 3,
    "docs/usage.txt": "The cart refuses an amount below one: no such page.\n",
}

REPORT = """Adding nothing to a cart fails

When I call `Cart().add("apple", 0)` I get an error, although zero should be allowed. It worked in the last version.

Traceback (most recent call last):
  File "/home/me/run.py", line 3, in <module>
    Cart().add("apple", 0)
ValueError: An item needs an amount of at least one, and apple has less
"""


@pytest.fixture(scope="module")
def search(store: Store, tmp_path_factory: pytest.TempPathFactory) -> CodeSearch:
    return opened(written(tmp_path_factory.mktemp("repository"), FILES), store)


def files_of(text: str) -> list[str]:
    return [found for found in re.findall(r"^(\S+\.\w+)(?= |$)", text, re.MULTILINE) if found in FILES]


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("An item needs an amount of at least one", "shop/cart.py", 8),
        ("rounded half to even, as banks do", "shop/cart.py", 12),
        ("no such page", "shop/page.js", 2),
        ("needs an AMOUNT of at LEAST", "shop/cart.py", 8),
    ],
)
def test_a_string_or_comment_over_several_lines_is_found(search: CodeSearch, text: str, path: str, line: int) -> None:
    for mode in (Mode.AUTO, Mode.TEXT):
        found = search.ask([text], mode=mode).text
        assert re.search(rf"^{path} in \w+.*\n  {line}\| ", found, re.MULTILINE), found


def test_words_in_another_order_or_with_words_between_are_not_a_phrase(search: CodeSearch) -> None:
    assert search.ask(["least at of amount"], mode=Mode.TEXT).text.startswith("Nothing matches")
    assert search.ask(["an amount at least"], mode=Mode.TEXT).text.startswith("Nothing matches")


def test_a_whole_report_leads_to_the_file_and_its_definition(search: CodeSearch) -> None:
    text = search.ask([REPORT]).text
    assert files_of(text)[0] == "shop/cart.py"
    assert "  5-14: Cart.add: def add(self, item, amount):" in text
    assert "tests/test_cart.py" not in text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("what does it cost to send a heavy parcel to a foreign country by weight", "shop/shipping/rates.py"),
        (
            'It breaks.\n  File "/x/site-packages/shop/mail.py", line 3, in send\n    return render\nKeyError: 1',
            "shop/mail.py",
        ),
        ("the problem is somewhere in shipping/rates.py I think, not in the cart", "shop/shipping/rates.py"),
        ("Mailer.send(order) renders nothing when an order is empty", "shop/mail.py"),
    ],
)
def test_the_file_that_fits_comes_first(search: CodeSearch, text: str, path: str) -> None:
    assert files_of(search.ask([text]).text)[0] == path


def test_tests_come_last_unless_they_are_asked_for(search: CodeSearch, tmp_path: Path, store: Store) -> None:
    assert files_of(search.ask(["amount of at"]).text) == ["shop/cart.py", "tests/test_cart.py"]
    assert files_of(search.ask(["amount of items in the cart"]).text)[0] == "shop/cart.py"
    assert "tests/test_cart.py" not in search.ask(["amount of items in the cart"]).text
    assert "tests/test_cart.py" in search.ask(["test amount items of a cart"]).text
    assert files_of(search.ask(["amount items zero"], path="tests").text) == ["tests/test_cart.py"]
    many: dict[str, str | bytes] = {f"tests/test_{n}.py": "word = 1\n" * 9 for n in range(9)}
    other = opened(written(tmp_path, {**many, "zz.py": "word = 2\n"}), store)
    assert other.ask(["word"], mode=Mode.TEXT).text.split("\n")[1].startswith("zz.py: 1 line")
    assert other.ask(["word ="], mode=Mode.REGEX).text.split("\n")[1].startswith("zz.py: 1 line")


def test_what_asks_for_tests() -> None:
    assert asks_for_tests("tests of the cart")
    assert not asks_for_tests("latest cart")
    assert not asks_for_tests(f"{REPORT} I ran the tests.")


def test_what_is_only_in_documentation_is_shown_with_the_closest_code(search: CodeSearch) -> None:
    text = search.ask(["cart refuses an amount below one"]).text
    assert files_of(text)[:2] == ["docs/usage.txt", "shop/cart.py"]


def test_an_edit_is_seen_at_once(store: Store, tmp_path: Path) -> None:
    search = opened(written(tmp_path, FILES), store)
    assert search.ask(["the parcel is heavier than the scale of the depot allows"]).is_empty
    (tmp_path / "shop/mail.py").write_text("# A parcel that is heavier than the\n# scale of the depot allows.\n")
    assert files_of(search.ask(["the parcel is heavier than the scale of the depot allows"]).text)[0] == "shop/mail.py"


def test_a_long_text_is_not_repeated_in_the_answer(search: CodeSearch) -> None:
    text = search.ask(["cart " * 3000]).text
    assert len(text) < 2000
    heading = search.ask(["cart of an apple " * 200, "Mailer"]).text.split("\n")[0]
    assert heading.startswith("== cart of an apple") and len(heading) < 300
