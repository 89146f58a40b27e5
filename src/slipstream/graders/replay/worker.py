"""Makes recorded calls inside a sandbox and reports the results. A standalone program: standard library only.

Input: one JSON object on standard input, `{"paths", "modules", "sessions", "cpu_s", "watch"}`; a session is a list of
operations `{"f": function, "a": arguments, "k": keyword arguments}`, all encoded. Output: one JSON line for each
session, `{"id", "answers"}`; an answer is `{"r": result}` or `{"x": exception}`, with `"m"` for arguments that the call
changed and `"p"` for what it printed.

It need not be trusted: the code under test shares its process and may forge answers, but has no access to the expected
values. Every session runs in a fork of its own, so none depends on another.

The encoding: None, booleans, strings and ints that fit a double stand for themselves; everything else is a list that
begins with a tag. `["h", n, path]` is what operation n of the session returned, or a part of it; `["src", ...]` is a
function or class as source text; `["o", type, repr]` is an opaque object, and occurs only in answers.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import fractions
import functools
import importlib
import io
import json
import os
import pathlib
import re
import resource
import signal
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 12
MAX_ITEMS = 500
MAX_CHARS = 4_000
MAX_ANSWER_BYTES = 256 << 10
"""Per session."""
MAX_STUCK = 2
"""After this many sessions that exceed their time, the rest are skipped."""
MAX_MEMORY = 768 << 20
MAX_PLAIN_INT = 1 << 53
MAX_REPR = 300
VALUE_TYPES = (
    datetime.date, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal, fractions.Fraction,
    pathlib.PurePath,
)  # fmt: skip
"""Encoded by their constructor and its arguments."""

Encoded = Any
"""JSON."""
Known = Callable[[object], Encoded]
"""Encodes a value that has a name or a handle; returns None for any other."""


class CannotEncode(Exception):
    """The value has no form from which another process could rebuild it."""


# ---------------------------------------------------------------- values to JSON


def encode(value: object, known: Known = lambda value: None, *, opaque: bool = False, depth: int = 0) -> Encoded:
    """With `opaque`, objects that cannot be rebuilt are encoded too; without, they raise CannotEncode."""
    if depth > MAX_DEPTH:
        raise CannotEncode("nested too deep")
    scalar = encode_scalar(value)
    if scalar is not MISSING:
        return scalar
    found = known(value)
    if found is None:
        found = reference(value)
    if found is not None:
        return found
    inner = functools.partial(encode, known=known, opaque=opaque, depth=depth + 1)
    kind = type(value)
    if kind in PLAIN:
        return encode_plain(value, kind, inner)
    if isinstance(value, VALUE_TYPES):
        made: Any = value.__reduce_ex__(2)
        return ["v", f"{made[0].__module__}:{made[0].__qualname__}", inner(tuple(made[1]))]
    base = next((one for one in PLAIN_BASES if isinstance(value, one)), None)
    if base is not None:
        return encode_subclass(value, base, inner)
    if not opaque:
        raise CannotEncode(f"a {kind.__qualname__}")
    return encode_opaque(value)


MISSING = object()
PLAIN = (list, tuple, dict, set, frozenset, bytes, bytearray, complex, range, slice)
PLAIN_OF: dict[type, Callable[[Any], Any]] = {
    str: lambda value: str.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}
PLAIN_BASES: tuple[Any, ...] = (*PLAIN_OF, dict, list, tuple, set, frozenset)


def encode_scalar(value: object) -> Encoded:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        number: int = value  # type: ignore[assignment]
        if abs(number) < MAX_PLAIN_INT:
            return number
        if number.bit_length() > 4 * MAX_CHARS:
            raise CannotEncode("a number of too many digits")
        return ["I", hex(number)]
    if kind is str:
        if len(value) > MAX_CHARS:  # type: ignore[arg-type]
            raise CannotEncode("a long string")
        return value
    if kind is float:
        return ["f", repr(value)]
    if value is Ellipsis:
        return ["e"]
    if value is NotImplemented:
        return ["ni"]
    return MISSING


def encode_plain(value: Any, kind: type, inner: Callable[[object], Encoded]) -> Encoded:
    if kind is complex:
        return ["c", repr(value.real), repr(value.imag)]
    if kind is range:
        return ["r", inner(value.start), inner(value.stop), inner(value.step)]
    if kind is slice:
        return ["sl", inner(value.start), inner(value.stop), inner(value.step)]
    if len(value) > (MAX_CHARS if kind in (bytes, bytearray) else MAX_ITEMS):
        raise CannotEncode(f"a long {kind.__name__}")
    if kind in (bytes, bytearray):
        return ["b" if kind is bytes else "ba", value.hex()]
    if kind is dict:
        return ["d", [[inner(key), inner(one)] for key, one in value.items()]]
    items = [inner(one) for one in value]
    if kind in (set, frozenset):
        return ["s" if kind is set else "z", sorted(items, key=json.dumps)]
    return ["l" if kind is list else "t", items]


def encode_subclass(value: Any, base: type, inner: Callable[[object], Encoded]) -> Encoded:
    """Encode by the class's name and the plain content."""
    kind = type(value)
    content: Any
    if base is dict:
        content = dict(dict.items(value))
    elif base in (list, tuple, set, frozenset):
        content = base(base.__iter__(value))
    else:
        content = PLAIN_OF[base](value)
    return ["n", f"{kind.__module__}:{kind.__qualname__}", inner(content)]


def encode_opaque(value: object) -> Encoded:
    """Encode an object by its type and repr. All iterators are alike, and so are all functions."""
    kind = type(value)
    if hasattr(kind, "__next__"):
        return ["o", "iterator", None]
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)):
        return ["o", "function", None]
    text = None
    if kind.__repr__ is not object.__repr__:
        with contextlib.suppress(Exception):
            text = repr(value)
            if len(text) > MAX_REPR or re.search(r"\bat 0x[0-9a-fA-F]+", text):
                text = None
    return ["o", kind.__qualname__, text]


def reference(value: object) -> Encoded:
    """The name by which a module, class or function can be imported; None if it has none."""
    if isinstance(value, types.ModuleType):
        return ["mod", value.__name__] if sys.modules.get(value.__name__) is value else None
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        owner = value.__objclass__
        return ["ref", f"{owner.__module__}:{owner.__qualname__}.{value.__name__}"]
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return None
    name = f"{value.__module__}:{value.__qualname__}"
    try:
        return ["ref", name] if resolve(name) is value else None
    except (ImportError, AttributeError, ValueError):
        return None


def parts(value: Encoded) -> list[Encoded]:
    """The encoded values that an encoded value contains."""
    if not isinstance(value, list):
        return []
    tag, *rest = value
    if tag in CONTAINERS:
        return list(rest[0])
    if tag == "d":
        return [part for item in rest[0] for part in item]
    if tag in ("r", "sl"):
        return rest
    if tag in ("n", "v"):
        return [rest[1]]
    if tag == "attr":
        return [rest[0]]
    return list(rest[2].values()) if tag == "src" else []


# ---------------------------------------------------------------- JSON to values


def resolve(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def decode(value: Encoded, results: list[Any]) -> Any:
    if not isinstance(value, list):
        return value
    tag, *rest = value
    if tag in CONTAINERS:
        return CONTAINERS[tag](decode(one, results) for one in rest[0])
    if tag == "d":
        return {decode(key, results): decode(one, results) for key, one in rest[0]}
    if tag in SIMPLE:
        return SIMPLE[tag](*rest)
    if tag in ("r", "sl"):
        return (range if tag == "r" else slice)(*(decode(one, results) for one in rest))
    if tag == "h":
        found = results[rest[0]]
        for step in rest[1]:
            found = found[decode(step, results)]
        return found
    if tag == "attr":
        return getattr(decode(rest[0], results), rest[1])
    if tag == "v":
        return resolve(rest[0])(*decode(rest[1], results))
    if tag == "n":
        kind, content = resolve(rest[0]), decode(rest[1], results)
        return kind(*content) if hasattr(kind, "_fields") else kind(content)
    if tag == "src":
        return from_source(rest[0], rest[1], {name: decode(one, results) for name, one in rest[2].items()})
    raise ValueError(f"no value has the tag {tag!r}")


CONTAINERS: dict[str, Callable[[Iterable[Any]], Any]] = {"l": list, "t": tuple, "s": set, "z": frozenset}
SIMPLE: dict[str, Callable[..., Any]] = {
    "I": lambda digits: int(digits, 16),
    "f": float,
    "c": lambda real, imag: complex(float(real), float(imag)),
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "e": lambda: Ellipsis,
    "ni": lambda: NotImplemented,
    "ref": resolve,
    "mod": importlib.import_module,
}


def from_source(text: str, name: str, names: dict[str, Any]) -> Any:
    """Rebuild a function or class of a test file, given the names that it uses."""
    space = {"__name__": "replayed", **names}
    if not name:
        return eval(text, space)
    exec(text, space)
    return space[name]


# ---------------------------------------------------------------- sessions


def run_session(ops: list[dict[str, Encoded]], watch: bool) -> list[dict[str, Encoded]]:
    """With `watch`, an answer says in `"c"` whether the call read a clock."""
    results: list[Any] = []
    answers = []
    for op in ops:
        clocks: list[str] = []
        if watch:
            sys.setprofile(functools.partial(record_clock_call, clocks))
        try:
            answer = run_op(op, results)
        finally:
            sys.setprofile(None)
        answers.append({**answer, "c": bool(clocks)} if watch else answer)
    return answers


CLOCKS = {"now", "today", "utcnow", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
          "process_time", "localtime", "gmtime", "getpid"}  # fmt: skip


def record_clock_call(clocks: list[str], frame: object, event: str, function: object) -> None:
    if event == "c_call" and getattr(function, "__name__", "") in CLOCKS:
        clocks.append(event)


def run_op(op: dict[str, Encoded], results: list[Any]) -> dict[str, Encoded]:
    """Make one call. Its result, or None if it raised, is appended to `results`."""
    answer: dict[str, Encoded] = {}
    args: list[Any] = []
    result = None
    printed = io.StringIO()
    try:
        function = decode(op["f"], results)
        args = [decode(one, results) for one in op["a"]]
        kwargs = {name: decode(one, results) for name, one in op["k"].items()}
        with contextlib.redirect_stdout(printed):
            result = function(*args, **kwargs)
        answer["r"] = encode_answer(result)
    except BaseException as raised:
        answer["x"] = type(raised).__qualname__
    if printed.getvalue():
        answer["p"] = printed.getvalue()[:MAX_CHARS]
    results.append(result)
    changed: dict[str, Encoded] = {}
    for place, (given, value) in enumerate(zip(op["a"], args, strict=False)):
        if isinstance(given, list) and given[0] in ("l", "d", "s", "ba"):
            after = encode_answer(value)
            if after != given:
                changed[str(place)] = after
    if changed:
        answer["m"] = changed
    return answer


def encode_answer(value: object) -> Encoded:
    try:
        return encode(value, opaque=True)
    except Exception:
        return ["o", type(value).__qualname__, None]


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    library = [path for path in sys.path if path and "site-packages" not in path and "dist-packages" not in path]
    rest = [path for path in sys.path if path and path not in library]
    sys.path[:] = [*library, *request["paths"], *rest]
    sys.argv = ["replay"]
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for module in request["modules"]:
        with contextlib.suppress(BaseException):  # the calls will report that it cannot be imported
            importlib.import_module(module)
    num_stuck = 0
    for number, ops in enumerate(request["sessions"]):
        text, is_stuck = run_in_fork(ops, request["cpu_s"], request["watch"]) if num_stuck < MAX_STUCK else (b"", False)
        num_stuck += is_stuck
        data = b'{"id": %d, "answers": %s}\n' % (number, text or b"null")
        while data:
            data = data[os.write(out, data) :]
    os._exit(0)


def run_in_fork(ops: list[dict[str, Encoded]], cpu_s: int, watch: bool) -> tuple[bytes, bool]:
    """Run a session in a child process. Returns its answers as JSON, empty if it died or wrote too much, and whether it
    exceeded its time."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
            data = json.dumps(run_session(ops, watch)).encode()
            while data:
                data = data[os.write(writing, data) :]
        finally:
            os._exit(0)
    os.close(writing)
    pieces: list[bytes] = []
    num_bytes = 0
    while num_bytes <= MAX_ANSWER_BYTES:
        piece = os.read(reading, 1 << 16)
        if not piece:
            break
        pieces.append(piece)
        num_bytes += len(piece)
    os.close(reading)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    is_stuck = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    data = b"".join(pieces)
    try:
        json.loads(data)
    except ValueError:
        return b"", is_stuck
    return (data if num_bytes <= MAX_ANSWER_BYTES else b""), is_stuck


if __name__ == "__main__":
    main()
