"""What a name is an instance of, what a method is called on, and the methods of a type that are written elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.tools.codesearch import CodeSearch, Mode, Store
from slipstream.tools.codesearch.parsing.languages import installed_grammars
from slipstream.tools.codesearch.parsing.python_source import RETURNED, parse

from .small_repository import opened, written

FILES: dict[str, str | bytes] = {
    "frames/__init__.py": "from frames.core import merge\nfrom frames import io\n",
    "frames/core.py": """import json


class Base:
    def route(self, rule):
        return self


class App(Base):
    def __init__(self, store: "Store"):
        self.store = store
        self.stack: Stack | None = None

    def context(self) -> "Context":
        return Context(self)

    def handle(self, request):
        ctx = self.context()
        ctx.push()
        self.store.get(request).save()
        self.stack.push()
        request.push()
        json.dumps(request)
        self.items.append(1)
        self.context().push()
        super().route("/")
        merge(1, 2)
        self.missing()


class Context:
    def push(self):
        return 1


class Stack:
    def push(self):
        return 2

    def append(self, item):
        return item


class Store:
    def get(self, key):
        return key


def merge(left, right):
    return left
""",
    "frames/io.py": "def read(path):\n    return path\n",
    "use.py": """import frames as fr
from frames.core import App, Context

app = App(None)
fr.merge(1, 2)


def run(ctx: Context):
    ctx.push()
    app.route("/")
    with Context() as other:
        other.push()
""",
    "other.py": "class Unrelated:\n    def save(self):\n        return 3\n\n    def missing(self):\n        pass\n",
}


@pytest.fixture(scope="module")
def search(store: Store, tmp_path_factory: pytest.TempPathFactory) -> CodeSearch:
    return opened(written(tmp_path_factory.mktemp("repository"), FILES), store)


@pytest.mark.parametrize(
    ("name", "heading", "where"),
    [
        ("fr.merge", "[fr is another name for it in an import]", "frames/core.py:49-50 function merge"),
        ("fr.io.read", "[fr is another name for it in an import]", "frames/io.py:1-2 function read"),
        ("app.route", "[app is an instance of App in use.py]", "frames/core.py:5-6 method Base.route"),
        ("ctx.push", "[ctx is an instance of Context in use.py]", "frames/core.py:32-33 method Context.push"),
        ("other.push", "[other is an instance of Context in use.py]", "frames/core.py:32-33 method Context.push"),
        (
            "self.store.get",
            "[store is an instance of Store in frames/core.py]",
            "frames/core.py:45-46 method Store.get",
        ),
        ("thing.handle", "[what thing is, is not known; by the name handle alone]", "frames/core.py:17-28 method"),
    ],
)
def test_an_alias_or_an_instance_leads_to_the_definition(
    search: CodeSearch, name: str, heading: str, where: str
) -> None:
    lines = search.ask([name]).text.split("\n")
    assert lines[0] == heading
    assert lines[1].startswith(where)


def test_callees_are_those_of_what_they_are_called_on(search: CodeSearch) -> None:
    assert (
        search.ask(["App.handle"], mode=Mode.CALLEES).text
        == """frames/core.py:17-28 method App.handle calls:
  18, 25: context -> frames/core.py:14-15 method App.context
  19: ctx.push -> not known; 2 definitions of that name
  20: self.store.get -> frames/core.py:45-46 method Store.get
  20: self.store.get().save -> not known; 1 definition of that name
  21: self.stack.push -> frames/core.py:37-38 method Stack.push
  22: request.push -> not known; 2 definitions of that name
  23: json.dumps -> not defined in this repository
  24: self.items.append -> not known; 1 definition of that name
  25: self.context().push -> frames/core.py:32-33 method Context.push
  26: super -> not defined in this repository
  26: super().route -> frames/core.py:5-6 method Base.route
  27: merge -> frames/core.py:49-50 function merge
  28: missing -> not known; 1 definition of that name"""
    )
    text = search.ask(["run"], mode=Mode.CALLEES).text
    assert "  9: ctx.push -> frames/core.py:32-33 method Context.push\n" in text
    assert "  10: app.route -> frames/core.py:5-6 method Base.route\n" in text
    assert text.endswith("  12: other.push -> frames/core.py:32-33 method Context.push")


@pytest.mark.parametrize(
    ("code", "types"),
    [
        ("x = Big(1)", [(-1, "x", "Big")]),
        ("x = small(1)", []),
        ("x: a.Big | None = None", [(-1, "x", "a.Big")]),
        ("x: 'Optional[a.Big]'", [(-1, "x", "a.Big")]),
        ("x: Optional['Big']", [(-1, "x", "Big")]),
        ("x: list[int]\ny: Any", []),
        ("with Big() as x: pass", [(-1, "x", "Big")]),
        ("def f(x: Big, *, y: int) -> Other: pass", [(0, "x", "Big"), (0, RETURNED, "Other")]),
        ("class A:\n  def f(self, x: Big):\n    self.y = x", [(1, "x", "Big"), (0, "y", "Big")]),
        ("class A:\n  def f(self):\n    self.y = Big()", [(0, "y", "Big")]),
        ("def f(x: Big):\n  def g():\n    pass\n  y = x", [(0, "x", "Big"), (0, "y", "Big")]),
    ],
)
def test_what_says_that_a_name_is_an_instance(code: str, types: list[tuple[int, str, str]]) -> None:
    assert parse(code.encode()).types == types


@pytest.mark.skipif(not {"rust", "go", "java", "typescript"} <= set(installed_grammars()), reason="no grammars")
def test_a_type_lists_its_methods_and_a_signature_is_whole(tmp_path: Path, store: Store) -> None:
    decorated = (
        "class D:\n    @cached(\n        1,\n    )\n    def same(\n        self,\n        a=1,\n    ):\n        pass\n"
    )
    files: dict[str, str | bytes] = {
        "src/point.rs": "pub struct Point { x: f64 }\n\nimpl Point {\n    pub fn new(x: f64) -> Self { Point { x } }\n"
        "    fn norm(\n        &self,\n        by: f64,\n    ) -> f64 {\n        by\n    }\n}\n\n"
        "impl Show for Point {\n    fn show(&self) { Point::new(1.0); self.x.norm(2); }\n}\n",
        "src/far/point.rs": "pub struct Other {}\nimpl Other { fn norm(&self) {} }\n",
        "a/deque.go": "package a\ntype Deque struct { n int }\n",
        "a/more.go": "package a\nfunc (d *Deque) Pop() int { return 0 }\n",
        "b/deque.go": "package b\nfunc (d *Deque) Other() int { return 0 }\n",
        "A.java": 'class A {\n  @Get(value = "/a") @Override public String same(int a) {\n    return "";\n  }\n}\n',
    }
    files.update((f"d{n}.py", decorated) for n in range(5))
    search = opened(written(tmp_path, files), store)
    assert search.ask(["Point"]).text.endswith(
        "members in other blocks:\n"
        "  src/point.rs:4: pub fn new(x: f64) -> Self { Point { x } }\n"
        "  src/point.rs:5-10: fn norm(&self, by: f64) -> f64 {\n"
        "  src/point.rs:14: fn show(&self) { Point::new(1.0); self.x.norm(2); }"
    )
    assert search.ask(["Point"]).next_step == 'ask for "src/point.rs:Point.new" for more of it'
    assert search.ask(["Deque"]).text.endswith(
        "members in other blocks:\n  a/more.go:2: func (d *Deque) Pop() int { return 0 }"
    )
    callees = search.ask(["Point.show"], mode=Mode.CALLEES).text
    assert "14: Point.new -> src/point.rs:4 method Point.new" in callees
    assert "self.x.norm -> not known; 2 definitions of that name" in callees
    lines = search.ask(["same"]).text.split("\n")
    assert "A.java:2-4 method A.same: public String same(int a) {" in lines
    assert "d0.py:2-9 method D.same: def same(self, a=1):" in lines
