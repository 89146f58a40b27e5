"""Records the calls that tests make: a plugin for `sandbox_program.py` in a sandbox. Standard library only.

Input: the text of `graders/replay/worker.py`, whose encoding it shares, and of `instrument.py`, which makes test files
call it; the package's modules. Output: the operations of every test, in order, each with its encoded function,
arguments and result, in the format of `worker.py`.

It records the values that a test passes to the package and gets back, and from which result a later argument came;
lambdas, functions and classes of the tests are stored as source. Calls within the package are not recorded.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.machinery
import json
import operator
import pathlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

MAX_OPS = 80
"""Per test."""
MAX_PRELUDE = 3_000
"""The limit of operations while test files are loaded."""
MAX_OP_BYTES = 4_000
FOREIGN = {"pytest", "_pytest", "unittest", "pluggy", "hypothesis", "nose", "mock", "doctest"}
"""Not available where calls are replayed."""
RAISES = {"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns", "deprecated_call"}

Op = dict[str, Any]


class Session:
    """The operations of one test, or of loading the test files."""

    def __init__(self, before: Session | None, max_ops: int) -> None:
        self.first = 0 if before is None else len(before.ops)
        self.before = before
        self.ops: list[Op] = []
        self.max_ops = max_ops
        self.handles: dict[int, Any] = {}
        self.alive: list[object] = []
        """Keeps the objects of the handles alive, so that no id is reused."""

    def handle(self, value: object) -> Any:
        found = self.handles.get(id(value))
        return self.before.handle(value) if found is None and self.before is not None else found


class Recorder:
    """A pytest plugin. `sessions` holds what was recorded, by test."""

    def __init__(self, job: dict[str, Any], root: str) -> None:
        self.codec: Any = types.ModuleType("worker")
        self.instrument: Any = types.ModuleType("instrument")
        for module in (self.codec, self.instrument):
            exec(compile(job[module.__name__], f"<{module.__name__}>", "exec"), module.__dict__)
        self.modules = set(job["modules"])
        self.sources = {f"{root}/{path}" for path in job["sources"]}
        self.root = f"{root}/"
        self.deps = f"{root}/.deps/"
        self.prelude = Session(None, MAX_PRELUDE)
        self.session = self.prelude
        self.sessions: dict[str, list[Op]] = {}
        self.texts: list[tuple[str, str, frozenset[str]]] = []
        """Source, name and used names of functions and classes in test files."""
        self.defined: dict[int, int] = {}
        self.makers: set[int] = set()
        """Functions that make the generator of a generator expression."""
        self.alive: list[object] = []
        self.named: dict[int, str] = {}
        self.num_modules = 0
        self.depth = 0
        self.sourcing: set[int] = set()

    def install(self) -> None:
        for name, value in {
            "_slip_call": self.call, "_slip_op": self.operate, "_slip_attr": self.attribute,
            "_slip_iter": self.iterate, "_slip_def": self.define, "_slip_dec": self.decorate,
            "_slip_setitem": self.set_item, "_slip_setattr": self.set_attribute,
            "_slip_gen": self.define_maker,
        }.items():  # fmt: skip
            setattr(builtins, name, value)
        real = importlib.machinery.SourceFileLoader.get_code
        recorder = self

        def get_code(loader: Any, fullname: str) -> Any:
            path = loader.get_filename(fullname)
            return recorder.compiled(path) if recorder.is_test(path) else real(loader, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]

    def is_test(self, path: str) -> bool:
        return path.startswith(self.root) and not path.startswith(self.deps) and path not in self.sources

    def compiled(self, path: str) -> types.CodeType:
        tree = ast.parse(pathlib.Path(path).read_bytes())
        changed = ast.fix_missing_locations(self.instrument.Instrument(self.texts).visit(tree))
        code: types.CodeType = compile(changed, path, "exec", dont_inherit=True)
        return code

    # ------------------------------------------------ hooks of pytest

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.session = Session(self.prelude, MAX_OPS)

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.sessions[nodeid] = self.session.ops
        self.session = self.prelude

    def name_globals(self) -> None:
        """Map the global objects of the package's modules to their names."""
        if self.num_modules == len(sys.modules):
            return
        self.num_modules = len(sys.modules)
        for module_name, module in sorted(sys.modules.items()):
            if module_name.partition(".")[0] in self.modules and isinstance(module, types.ModuleType):
                for name, value in vars(module).items():
                    if not name.startswith("__") and self.codec.encode_scalar(value) is self.codec.MISSING:
                        self.named.setdefault(id(value), f"{module_name}:{name}")

    # ------------------------------------------------ what instrumented code calls

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        op = self.prepared(function, args, kwargs)
        if op is None:
            if getattr(function, "__name__", "") in RAISES:
                args = self.watched(args)
            return function(*args, **kwargs)
        self.depth += 1
        try:
            result = function(*args, **kwargs)
        except BaseException as raised:
            self.note(op, {"x": type(raised).__qualname__}, None)
            raise
        else:
            self.note(op, {"r": self.codec.encode_answer(result)}, result)
            return result
        finally:
            self.depth -= 1

    def watched(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of `raises(error, function, ...)`, with calls of the function recorded as the test's."""

        def through(function: Any) -> Any:
            return lambda *args, **kwargs: self.call(function, *args, **kwargs)

        is_function = [place > 0 and callable(one) and not isinstance(one, type) for place, one in enumerate(args)]
        place = is_function.index(True) if True in is_function else len(args)
        return (*args[:place], *(through(one) for one in args[place : place + 1]), *args[place + 1 :])

    def operate(self, name: str, *operands: Any) -> Any:
        function: Any = getattr(operator, name)
        if name == "contains":
            operands = operands[::-1]
        if self.depth or all(self.session.handle(one) is None for one in operands):
            return function(*operands)
        return self.call(function, *operands)

    def attribute(self, value: Any, name: str) -> Any:
        if self.depth or self.session.handle(value) is None or callable(getattr(value, name)):
            return getattr(value, name)
        return self.call(getattr, value, name)

    def set_item(self, value: Any, target: Any, key: Any) -> None:
        self.operate("setitem", target, key, value)

    def set_attribute(self, value: Any, target: Any, name: str) -> None:
        if self.depth or self.session.handle(target) is None:
            setattr(target, name, value)
        else:
            self.call(setattr, target, name, value)

    def iterate(self, value: Any) -> Any:
        return value if self.depth or self.session.handle(value) is None else self.steps(value)

    def steps(self, value: Any) -> Iterator[Any]:
        items = value if hasattr(value, "__next__") else self.call(iter, value)
        while True:
            try:
                one = self.call(next, items)
            except StopIteration:
                return
            yield one

    def define(self, number: int) -> Callable[[Any], Any]:
        def known(thing: Any) -> Any:
            self.defined[id(thing)] = number
            self.alive.append(thing)
            return thing

        return known

    def define_maker(self, number: int) -> Callable[[Any], Any]:
        def known(function: Any) -> Any:
            self.makers.add(id(function))
            return self.define(number)(function)

        return known

    def decorate(self, decorator: Any) -> Any:
        return lambda thing: self.call(decorator, thing)

    # ------------------------------------------------ operations

    def prepared(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Op | None:
        """The operation, encoded before the call; None if it is not recorded."""
        session = self.session
        if self.depth or len(session.ops) >= session.max_ops or threading.current_thread() is not MAIN:
            return None
        if isinstance(function, types.FunctionType) and self.is_of_test(function):
            return None  # a test's own function: the calls it makes are recorded instead
        self.name_globals()
        try:
            op: Op = {"f": self.encode(function), "a": [self.encode(one) for one in args]}
            op["k"] = {name: self.encode(one) for name, one in kwargs.items()}
            if len(json.dumps(op)) > MAX_OP_BYTES:
                return None
        except (self.codec.CannotEncode, RecursionError):
            return None
        op["own"] = any(self.is_own(one) for one in (op["f"], *op["a"], *op["k"].values()))
        return op

    def is_of_test(self, function: types.FunctionType) -> bool:
        return id(function) in self.defined and id(function) not in self.makers

    def note(self, op: Op, outcome: Op, result: object) -> None:
        session = self.session
        number = session.first + len(session.ops)
        kept: list[object] = []
        handles: dict[int, Any] = {}
        if "r" in outcome:
            self.collect(result, number, [], handles, kept)
        if not op["own"] and not handles:
            return
        session.handles.update(handles)
        session.alive += kept
        session.ops.append({**op, **outcome})

    def collect(self, value: Any, number: int, path: list[Any], handles: dict[int, Any], kept: list[object]) -> None:
        """Give handles to objects in plain containers that cannot be encoded by their content."""
        if len(path) > 3 or self.codec.encode_scalar(value) is not self.codec.MISSING:
            return
        kind = type(value)
        if kind in (list, tuple) and len(value) <= 50:
            for place, one in enumerate(value):
                self.collect(one, number, [*path, place], handles, kept)
        elif kind is dict and len(value) <= 50:
            for key, one in value.items():
                if type(key) in (str, int):
                    self.collect(one, number, [*path, key], handles, kept)
        elif kind not in self.codec.PLAIN and self.session.handle(value) is None and not self.codec.reference(value):
            handles[id(value)] = ["h", number, path]
            kept.append(value)

    def is_own(self, value: Any) -> bool:
        """Whether an operation involves the package: it names part of it, or uses what such an operation returned."""
        tag = value[0] if isinstance(value, list) else ""
        if tag in ("ref", "mod", "n", "v") and value[1].partition(":")[0].partition(".")[0] in self.modules:
            return True
        if tag == "h":
            place = value[1] - self.session.first
            return bool((self.session.ops[place] if place >= 0 else self.prelude.ops[value[1]])["own"])
        return any(self.is_own(one) for one in self.codec.parts(value))

    # ------------------------------------------------ encoding

    def encode(self, value: object) -> Any:
        return self.codec.encode(value, self.known)

    def known(self, value: Any) -> Any:
        found = self.session.handle(value)
        if found is not None:
            return found
        if id(value) in self.defined:
            return self.source_of(value)
        if id(value) in self.named and self.codec.reference(value) is None:
            return ["ref", self.named[id(value)]]
        if isinstance(value, types.MethodType) or (
            isinstance(value, types.BuiltinFunctionType)
            and value.__self__ is not None
            and not isinstance(value.__self__, types.ModuleType)
        ):
            return ["attr", self.encode(value.__self__), value.__name__]
        place = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(place, str) and self.is_foreign(place):
            raise self.codec.CannotEncode(f"of {place}")
        if place == "builtins" and getattr(value, "__name__", "") in self.instrument.WITH_FRAMES:
            raise self.codec.CannotEncode("it looks at its caller")
        return None

    def is_foreign(self, module_name: str) -> bool:
        if module_name.partition(".")[0] in FOREIGN:
            return True
        path = getattr(sys.modules.get(module_name), "__file__", None)
        return path is not None and self.is_test(path)

    def source_of(self, value: Any) -> Any:
        """A function or class of the tests as source, with the names it uses that can be encoded."""
        number = self.defined[id(value)]
        text, name, used = self.texts[number]
        if number in self.sourcing:
            raise self.codec.CannotEncode("it needs itself")
        spaces = [vars(sys.modules[value.__module__])] if value.__module__ in sys.modules else []
        functions = [value] if isinstance(value, types.FunctionType) else list(vars(value).values())
        for one in functions:
            if isinstance(one, types.FunctionType):
                spaces.append(_cells(one))
        names: dict[str, Any] = {}
        self.sourcing.add(number)
        try:
            for one in sorted(used - {name}):
                for space in reversed(spaces):
                    if one in space:
                        with contextlib.suppress(self.codec.CannotEncode):  # then a replay that needs it is dropped
                            names[one] = self.encode(space[one])
                        break
        finally:
            self.sourcing.discard(number)
        return ["src", text, name, names]


MAIN = threading.main_thread()


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found
