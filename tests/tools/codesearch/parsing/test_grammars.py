from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.tools.codesearch import Mode, Store, need_grammars
from slipstream.tools.codesearch.answers.uses import CALLS
from slipstream.tools.codesearch.parsing.languages import GRAMMARS, installed_grammars, language_of

from ..small_repository import opened, written

pytestmark = pytest.mark.skipif(set(installed_grammars()) != set(GRAMMARS), reason="needs the extra `code`")

SOURCES = {
    "a.js": """import {a as b} from "./x.js";
export class Foo extends Bar {
  constructor() { this.z = 2; }
  async run(x) { helper(x); this.stop(); x.go(); return new Baz(); }
}
export const arrow = async (y) => {
  arrow(y);
};
const LIMIT = 3;
""",
    "b.ts": """interface A extends B { x: number; m(): void }
type T = string | number;
enum E { One }
abstract class C<X> extends D<X> implements A {
  private y = 1;
  m(): void { this.m(); }
}
export function over(a: string): void;
export function over(a: any) {}
""",
    "b.tsx": "const App = () => <div onClick={go}>hi</div>;\n",
    "c.go": """package main
type S struct { A int }
type I interface { Do() error }
func (s *S) Do() error {
  fmt.Println(s.A)
  return helper()
}
func (o *Other[T]) Run() {}
func helper() {}
""",
    "d.rs": """struct P<T> { x: T }
trait Tr { fn t(&self); }
impl<T> Tr for P<T> {
  fn t(&self) { self.u(); g(); inner::f(); }
}
fn g() {}
""",
    "E.java": """@Deprecated
public class A extends B implements C {
  private int x = 1, y;
  public void run() { this.stop(); list.add(1); go(); new Foo(); }
}
""",
    "f.c": """#define MAX 3
struct point { int x; };
static int counter = 0;
char *name(void) { return "x"; }
int add(int a, int b) { p->go(); return helper(a) + b; }
""",
    "g.cpp": """namespace ns {
class Foo : public Base {
 public:
  int bar() const { return this->baz(); }
};
int Foo::baz() { return helper(); }
}
void Elsewhere::run() {}
""",
}
DEFINITIONS = {
    "a.js": "class Foo 2-5, method Foo.constructor 3, attribute Foo.z 3, method Foo.run 4, function arrow 6-8, "
    "variable LIMIT 9",
    "b.ts": "interface A 1, field A.x 1, method A.m 1, type T 2, enum E 3, class C 4-7, field C.y 5, method C.m 6, "
    "function over 8, function over 9",
    "b.tsx": "function App 1",
    "c.go": "struct S 2, field S.A 2, interface I 3, method I.Do 3, function helper 9, method S.Do 4-7, impl Other 8, "
    "method Other.Run 8",
    "d.rs": "struct P 1, field P.x 1, trait Tr 2, method Tr.t 2, impl P 3-5, method P.t 4, function g 6",
    "E.java": "class A 1-5, field A.x 3, field A.y 3, method A.run 4",
    "f.c": "macro MAX 1, struct point 2, field point.x 2, variable counter 3, function name 4, function add 5",
    "g.cpp": "module ns 1-7, class ns.Foo 2-5, method ns.Foo.bar 4, method ns.Foo.baz 6, impl Elsewhere 8, "
    "method Elsewhere.run 8",
}
CALLED = {
    "a.js": "Baz arrow go helper stop",
    "b.ts": "m",
    "b.tsx": "",
    "c.go": "Println helper",
    "d.rs": "f g u",
    "E.java": "Foo add go stop",
    "f.c": "go helper",
    "g.cpp": "baz helper",
}


@pytest.mark.parametrize("name", SOURCES)
def test_definitions_and_calls_of_each_language(name: str, tmp_path: Path, store: Store) -> None:
    search = opened(written(tmp_path, {name: SOURCES[name]}), store)
    search.tree.refresh()
    facts = search.tree.get(name)
    assert facts is not None
    assert facts.language == language_of(name)
    assert facts.error == ""
    told = []
    for definition in facts.definitions():
        lines = f"{definition.first}-{definition.last}".removesuffix(f"-{definition.first}")
        told.append(f"{definition.kind} {'.'.join(facts.qualified(definition.number))} {lines}")
    assert ", ".join(told) == DEFINITIONS[name]
    everywhere = frozenset(range(-1, facts.num_defs))
    assert " ".join(sorted({use.name for use in facts.uses_in(everywhere) if use.how in CALLS})) == CALLED[name]


def test_a_method_is_found_below_a_type_of_another_file(tmp_path: Path, store: Store) -> None:
    search = opened(written(tmp_path, dict(SOURCES)), store)
    assert search.ask(["Other.Run"]).text.startswith("c.go:8 method Other.Run")
    assert search.ask(["Foo::baz"]).text.startswith("g.cpp:6 method ns.Foo.baz")
    assert "certain:\n  g.cpp:4 in ns.Foo.bar" in search.ask(["Foo.baz"], path="g.cpp", mode=Mode.CALLERS).text


def test_a_file_with_an_error_still_gives_the_rest(tmp_path: Path, store: Store) -> None:
    search = opened(written(tmp_path, {"a.go": "package a\nfunc f() {\n  ) ( }\n\nfunc whole() {}\n"}), store)
    assert "function whole" in search.ask(["whole"]).text


def test_minified_code_is_text_alone(tmp_path: Path, store: Store) -> None:
    search = opened(written(tmp_path, {"a.min.js": "function f(){return 1};" * 200}), store)
    search.tree.refresh()
    assert search.tree.unparsed == {"a.min.js": "not parsed: minified"}


def test_a_language_without_a_grammar_names_the_extra() -> None:
    with pytest.raises(ConfigError, match=r"no grammar for cobol is installed: pip install 'slipstream\[code\]'"):
        need_grammars(["python", "go", "cobol"])
