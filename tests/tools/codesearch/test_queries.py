"""Golden answers: what a model sees, written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ToolError
from slipstream.tools.codesearch import CodeSearch, Mode, Store
from slipstream.tools.codesearch.answers.ranking import words
from slipstream.tools.codesearch.answers.terms import PathFilter, close_names, read_term

from .small_repository import FILES, opened, written

SAVE = """shop/models.py:15-16 method Base.save
15|     def save(self):
16|         return self.validate()"""


@pytest.fixture(scope="module")
def search(store: Store, tmp_path_factory: pytest.TempPathFactory) -> CodeSearch:
    return opened(written(tmp_path_factory.mktemp("repository"), FILES), store)


@pytest.mark.parametrize(
    ("term", "note"),
    [
        ("Base.save", ""),
        ("save", ""),
        ("models.Base.save", ""),
        ("shop.models.Base.save", ""),
        ("shop/models.py:Base.save", ""),
        ("models.py:save", ""),
        ("def save", ""),
        ("Base.save()", ""),
        ("shop.Base.save", "[shop.Base.save is re-exported from there]\n"),
        ("Order.save", "[Order inherits save from there]\n"),
        ("shop.models.Order.save", "[Order inherits save from there]\n"),
        ("shop.Order.save", "[shop.Order.save is re-exported from there]\n"),
        ("base.SAVE", "[found in another spelling of upper and lower case]\n"),
    ],
)
def test_a_method_is_found_by_every_name_it_goes_by(search: CodeSearch, term: str, note: str) -> None:
    found = search.ask([term])
    assert found.text == note + SAVE
    assert found.next_step == '2 other files use the name: mode="callers" shows who calls it'


def test_another_name_in_an_import_leads_to_the_definition(search: CodeSearch) -> None:
    assert search.ask(["vat"]).text == (
        "[vat is another name for it in an import]\nshop/rates.py:4-5 function tax\n"
        "4| def tax(amount):\n5|     return amount * RATE"
    )


def test_a_star_import_is_followed(search: CodeSearch) -> None:
    assert search.ask(["shop.RATE"]).text == (
        "[shop.RATE is re-exported from there]\nshop/rates.py:1 variable RATE\n1| RATE, OLD = 0.2, 0.1"
    )


def test_a_namespace_package_and_a_stub_are_modules_too(search: CodeSearch) -> None:
    assert search.ask(["plugins.extra.tool.run"]).text.startswith("plugins/extra/tool.py:4-7 function run\n")
    assert search.ask(["shop.typed.typed"]).text.startswith("shop/typed.pyi:1 function typed\n")


def test_several_definitions_are_previewed(search: CodeSearch) -> None:
    assert (
        search.ask(["chosen"]).text
        == """2 definitions of chosen:
shop/models.py:60-61 function chosen
60|     def chosen():
61|         return 1
shop/models.py:65-66 function chosen
65|     def chosen():
66|         return 2"""
    )


def test_overloads_and_attributes_are_definitions(search: CodeSearch) -> None:
    assert search.ask(["Order.find"]).text.startswith("3 definitions of Order.find:\nshop/models.py:40-41 method")
    assert search.ask(["Order.forced"]).text.startswith("shop/models.py:38 attribute Order.forced\n")


def test_callers_are_certain_or_by_name(search: CodeSearch) -> None:
    assert (
        search.ask(["Base.save"], mode=Mode.CALLERS).text
        == """3 calls of Base.save in 3 files
1 certain:
  shop/models.py:55 in Order.fetch: return await self.save()
2 by name alone:
  plugins/extra/tool.py:6 in run: order.save()
  tests/test_models.py:5 in test_order: assert Order(1).save()"""
    )
    assert (
        search.ask(["tax"], mode=Mode.CALLERS).text
        == """2 calls of tax in 1 file
1 certain:
  shop/models.py:33 in Order.total: return vat(sum(self.lines)) + rates.tax(1)
1 by name alone:
  shop/models.py:33 in Order.total: return vat(sum(self.lines)) + rates.tax(1)"""
    )


def test_a_class_is_called_where_it_is_made(search: CodeSearch) -> None:
    assert (
        search.ask(["Order"], mode=Mode.CALLERS).text
        == """2 calls of Order in 2 files
2 certain:
  plugins/extra/tool.py:5 in run: order = Order(1)
  tests/test_models.py:5 in test_order: assert Order(1).save()"""
    )


def test_callees_lead_to_their_definitions(search: CodeSearch) -> None:
    assert (
        search.ask(["run"], mode=Mode.CALLEES).text
        == """plugins/extra/tool.py:4-7 function run calls:
  5: Order -> shop/models.py:22-55 class Order
  6: order.save -> shop/models.py:15-16 method Base.save
  7: order.find -> shop/models.py:40-41 method Order.find or shop/models.py:42-43 method Order.find"""
    )


def test_references_count_imports_and_plain_uses(search: CodeSearch) -> None:
    text = search.ask(["RATE"], mode=Mode.REFERENCES).text
    assert text == "1 uses of RATE in 1 file\n1 certain:\n  shop/rates.py:5 in tax: return amount * RATE"


def test_lines_of_a_file_and_the_definition_around_one(search: CodeSearch) -> None:
    assert (
        search.ask(["shop/models.py:36-37"]).text
        == """shop/models.py:36-37 in Order.total
36|     def total(self, value):
37|         self.cached = value"""
    )
    assert search.ask(["models.py:16"], path="shop").text == SAVE


def test_a_file_is_shown_and_a_glob_lists(search: CodeSearch) -> None:
    assert search.ask(["rates.py"]).text.startswith("shop/rates.py (5 lines)\n1| RATE, OLD")
    assert search.ask(["shop/*.py"]).text == (
        "3 files match shop/*.py:\nshop/__init__.py (2 lines)\nshop/models.py (72 lines)\nshop/rates.py (5 lines)"
    )
    assert search.ask(["README.md"]).text.startswith("README.md (3 lines)\n1| # Shop")


def test_text_is_found_in_every_file_with_the_definition_around_it(search: CodeSearch) -> None:
    assert search.ask(["return amount"]).text == (
        '"return amount" is found on 1 line of 1 file:\nshop/rates.py in tax\n  5|     return amount * RATE'
    )
    assert "README.md\n  3| Run the plugin" in search.ask(["the PLUGIN with"]).text
    assert "is found in another case" in search.ask(["the PLUGIN with"]).text


def test_a_name_that_looks_like_a_file_is_looked_up_as_one_if_there_is_no_such_file(search: CodeSearch) -> None:
    assert search.ask(["models.C"]).text.startswith('There is no "models.C"') is False
    with pytest.raises(ToolError, match="no file matches"):
        search.ask(["models/C.h"])


def test_a_part_of_a_name_shows_the_names_that_hold_it(search: CodeSearch) -> None:
    text = search.ask(["valida"]).text
    assert text.startswith("No definition is called valida; 1 have it in their names:\nshop/models.py:18-19 method")


def test_a_regular_expression_is_matched_line_by_line(search: CodeSearch) -> None:
    assert search.ask([r"^class \w+\(Base\)"], mode=Mode.REGEX).text == (
        '"^class \\w+\\(Base\\)" is found on 1 line of 1 file:\nshop/models.py in Order\n  23| class Order(Base):'
    )


def test_several_terms_are_answered_one_by_one(search: CodeSearch) -> None:
    text = search.ask(["tax", "no/such/file.py", "chosen"]).text
    assert [line for line in text.split("\n") if line.startswith("== ")] == [
        "== tax",
        "== no/such/file.py",
        "== chosen",
    ]
    assert 'no file matches "no/such/file.py"' in text


def test_a_path_narrows(search: CodeSearch) -> None:
    assert search.ask(["save"], path="tests", mode=Mode.CALLERS).text.startswith("1 calls of save in 1 file\n")
    text = search.ask(["Order"], path="tests/*.py").text
    assert text.startswith("Order is defined elsewhere: shop/models.py:22-55 class Order\n")
    assert '"Order" is found on 2 lines of 1 file:' in text


def test_a_misspelt_name_leads_to_the_closest(search: CodeSearch) -> None:
    assert search.ask(["Basse.saev"]).text.startswith(
        'There is no "Basse.saev". Closest by name:\nshop/models.py:15-16'
    )


def test_words_rank_definitions_when_nothing_matches(search: CodeSearch) -> None:
    text = search.ask(["customers order"]).text
    assert text.startswith(
        'Nothing matches "customers order" as it stands. Closest by their words:\n'
        "shop/models.py (72 lines)\n  22-55: Order: class Order(Base):\n"
    )


def test_nothing_at_all_says_so(search: CodeSearch) -> None:
    found = search.ask(["zzzqqq"])
    assert (found.text, found.is_empty, found.kind) == ('Nothing matches "zzzqqq".', True, "nothing")


@pytest.mark.parametrize(
    ("terms", "path", "mode", "message"),
    [
        ([], "", Mode.AUTO, "say what to look for"),
        (["x"] * 9, "", Mode.AUTO, "9 terms are too many"),
        (["x" * 20_001], "", Mode.AUTO, "more than 20000 characters"),
        (["save"], "nowhere", Mode.AUTO, 'no file matches path="nowhere"'),
        (["modles.py"], "", Mode.AUTO, "perhaps shop/models.py"),
        (["shop/models.py:Nope"], "", Mode.AUTO, 'defines no "Nope"'),
        (["shop/rates.py:90"], "", Mode.AUTO, "has 5 lines: ask for lines 1 to 5"),
        (["nope"], "", Mode.CALLERS, 'there is no definition "nope"'),
        (["a b"], "", Mode.CALLEES, "needs the name of a definition"),
        (["(a"], "", Mode.REGEX, '"(a" is not a regular expression'),
    ],
)
def test_a_query_that_cannot_be_answered_names_the_remedy(
    search: CodeSearch, terms: list[str], path: str, mode: Mode, message: str
) -> None:
    with pytest.raises(ToolError) as raised:
        search.ask(terms, path=path, mode=mode)
    assert message in str(raised.value)
    assert str(raised.value).startswith("search: ")


def test_a_long_class_is_folded_and_a_long_function_cut(tmp_path: Path, store: Store) -> None:
    methods = "".join(f"    def m{n}(self):\n        self.a{n} = 1\n        return {n}\n\n" for n in range(60))
    body = "".join(f"    x = {n}\n" for n in range(300))
    search = opened(written(tmp_path, {"a.py": f"class Big:\n{methods}\ndef long():\n{body}"}), store)
    found = search.ask(["Big"])
    assert found.text.startswith("a.py:1-240 class Big\n1| class Big:\n  attributes: a0, a1,")
    assert "\n  6-8: def m1(self):\n" in found.text
    assert found.next_step == 'ask for "a.py:Big.m0" for more of it'
    found = search.ask(["long"])
    assert found.text.endswith("[lines 284-543 are not shown]")
    assert found.next_step == 'ask for "a.py:284-543" for more of it'
    assert len(search.ask(["a.py:1-543"]).text) <= 12_100


def test_many_definitions_are_folded_to_lines(tmp_path: Path, store: Store) -> None:
    files: dict[str, str | bytes] = {f"m{n:02}.py": "def same(a, b):\n    return a\n" for n in range(40)}
    found = opened(written(tmp_path, files), store).ask(["same"])
    lines = found.text.split("\n")
    assert lines[:2] == ["40 definitions of same:", "m00.py:1-2 function same: def same(a, b):"]
    assert lines[-1] == "[15 more]"
    assert found.kind == "narrow"


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("a.py", "x/a.py", True),
        ("a.py", "x/ba.py", False),
        ("x", "x/y/a.py", True),
        ("x/*.py", "x/a.py", True),
        ("x/*.py", "x/y/a.py", False),
        ("x/**/*.py", "x/y/z/a.py", True),
        ("x/**/*.py", "x/a.py", True),
        ("*.p[iy]", "d/a.py", True),
        ("[!a].py", "a.py", False),
        ("[!a].py", "b.py", True),
        ("[!-a].py", "b.py", True),
        ("[!a].py", "x/.py", False),
        ("[a&&b].py", "a.py", True),
        ("", "anything", True),
        ("x/**", "x/y/a.py", True),
        ("x/**", "x", False),
        ("x/a**b.py", "x/ab.py", True),
        ("x/a**b.py", "x/a1/2/3b.py", True),
        ("x/a**b.py", "x/c/b.py", False),
        ("app/[slug]/page.tsx", "app/[slug]/page.tsx", True),
        ("app/[slug]/page.tsx", "app/s/page.tsx", True),
        ("app/[slug]/*.tsx", "app/[slug]/page.tsx", True),
        ("app/[user-id].tsx", "app/[user-id].tsx", True),
        ("app/[user-id].tsx", "app/u.tsx", False),
        ("app/[[...slug]]/page.tsx", "src/app/[[...slug]]/page.tsx", True),
        ("[!]", "[!]/a.py", True),
        ("[^]", "a.py", False),
        ("[a--b].py", "[a--b].py", True),
        ("a[", "a[", True),
    ],
)
def test_path_patterns(pattern: str, path: str, is_match: bool) -> None:
    assert PathFilter(pattern).match(path) is is_match


@given(st.text(alphabet="ab*?/[]!^-&|~\\.(", max_size=12))
def test_every_text_is_a_pattern_and_one_without_stars_means_itself(text: str) -> None:
    found = PathFilter(text).match(text.removeprefix("./").strip("/"))
    assert found or "*" in text or "//" in text


def test_a_path_with_brackets_is_searched_and_one_that_is_none_is_told(tmp_path: Path, store: Store) -> None:
    files: dict[str, str | bytes] = {
        "app/[user-id].tsx": "export const User = 1\n",
        "app/[slug]/page.tsx": "export function Page() {}\n",
    }
    search = opened(written(tmp_path, files), store)
    assert search.ask(["User"], path="app/[user-id].tsx").text.startswith("app/[user-id].tsx:1 variable User")
    assert search.ask(["app/[user-id].tsx:User"]).text.startswith("app/[user-id].tsx:1 variable User")
    assert search.ask(["Page"], path="app/[slug]/page.tsx").text.startswith("app/[slug]/page.tsx:1 function Page")
    for path in ("[!]", "app/[z-a].tsx"):
        with pytest.raises(ToolError, match="no file matches"):
            search.ask(["Page"], path=path)
    with pytest.raises(ToolError, match="the path has more than 1000 characters"):
        search.ask(["Page"], path="[a]" * 400)


def means(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a path begins with what a pattern means; tries everything."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return bool(names) if len(pattern) == 1 else any(means(pattern[1:], names[n:]) for n in range(len(names)))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and means(pattern[1:], names[1:])


@given(
    st.lists(st.sampled_from(["**", "*", "a", "b", "a*", "*b", "*a*", "a*b*a", "*a*b*", "?", "?*b"]), min_size=1),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=6),
)
def test_stars_mean_what_trying_everything_finds(pattern: list[str], names: list[str]) -> None:
    wanted = any(means(pattern, names[n:]) for n in range(len(names)))
    assert PathFilter("/".join(pattern)).match("/".join(names)) is wanted


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("**/" * 40 + "x.py", "a/" * 40 + "a.py"),
        ("**/a/" * 20 + "b.py", "a/" * 60 + "a.py"),
        ("*a" * 30 + "*b", "a" * 200),
        ("a**" * 30 + "b", "a/" * 60 + "a"),
        ("**/*a*a*a/" * 9 + "b", "aaaaaa/" * 30 + "a"),
        (("**/[ab]*" * 120 + "z")[:1000], "ab/" * 120 + "a"),
        ("[ab]*" * 190 + "z", "ab" * 120),
    ],
)
def test_no_pattern_is_slow_to_match(pattern: str, path: str) -> None:
    """Tried in every way, each of these would take longer than the tests may."""
    assert not PathFilter(pattern).match(path)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a.b.Cd", "symbol"),
        ("C::d", "symbol"),
        ("a/b.py", "files"),
        ("*.py", "files"),
        ("b.py:3", "lines"),
        ("b.py:3-9", "lines"),
        ("b.py:C.d", "symbol"),
        ("x = 1", "text"),
        ("f(x*y)", "text"),
        ("a b", "text"),
    ],
)
def test_terms_are_told_apart_by_their_form(text: str, form: str) -> None:
    assert read_term(text).form == form


def test_words_of_code() -> None:
    for text in ("parseHTTPDates", "parse_http_date", "parse the HTTP dates"):
        assert words(text) == ["parse", "http", "date"]


def test_a_pattern_that_is_tried_on_very_many_names_is_given_up() -> None:
    """The work of one query is counted, not timed."""
    wanted = PathFilter("[ab]*/" * 20 + "z")
    deep = "/".join(["ab" * 60] * 60)
    with pytest.raises(ToolError, match=r"too costly for so many files: simplify it"):
        for _ in range(10_000):
            assert not wanted.match(deep)


def test_close_names_compares_few_of_very_many() -> None:
    known = [f"alpha_{number}" for number in range(100_000)]
    assert close_names("alpha_99999x", known, limit=1, cutoff=0.7) != []
    assert close_names("a" * 1000, ["a" * 999], limit=1, cutoff=0.7) == []
    assert close_names("filtre", ["filter", "flat", "refilter"], limit=1, cutoff=0.7) == ["filter"]
