"""`slipstream tools`: which tools there are, and what a model would see of one.

    slipstream tools try search --repo DIR "QuerySet.filter" mode=callers
    slipstream tools try edit --repo DIR command=view path=setup.py

Invariants: the tool runs in a sandbox that begins with the folder's files, and the folder is never changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.printable import one_line, printable
from slipstream.types import Json, ToolCall, ToolSpec

tools_app = typer.Typer(help="Look at tools.", no_args_is_help=True)

NEXT = "then"


@tools_app.command("list")
def list_command(as_json: Annotated[bool, typer.Option("--json", help="Print the schemas as JSON.")] = False) -> None:
    """The built-in tools, as a model sees them."""
    from slipstream.tools.registry import TOOLS, resolve

    specs = [resolve(name).spec for name in TOOLS]
    if as_json:
        print(json.dumps({spec.name: spec.parameters for spec in specs}))
        return
    for spec in specs:
        print(one_line(f"{spec.name:<12} {' '.join(spec.description.split())}"))


@tools_app.command("try")
def try_command(
    name: Annotated[str, typer.Argument(help="A tool's name, or its import path.")],
    words: Annotated[
        list[str],
        typer.Argument(
            help="Its arguments as name=value, values as JSON or text; a word without a name goes to the first list "
            "among them. The word `then` begins another call, in the same sandbox."
        ),
    ],
    repo: Annotated[Path, typer.Option(help="A folder: the sandbox begins with its files, and it is never changed.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Call a tool in a sandbox and print what a model would see."""
    from slipstream.tools.registry import resolve

    spec = resolve(name).spec
    calls = [
        ToolCall(id=f"call-{number}", name=spec.name, arguments=read_arguments(spec, part))
        for number, part in enumerate(_split(words), start=1)
    ]
    answers = asyncio.run(_call(name, calls, repo))
    if as_json:
        print(json.dumps(answers))
        return
    for answer in answers:
        print(printable(str(answer["text"])))


def read_arguments(spec: ToolSpec, words: Sequence[str]) -> dict[str, Json]:
    """What `words` say, by the tool's own schema."""
    properties = spec.parameters.get("properties")
    known = properties if isinstance(properties, dict) else {}
    first_list = next((key for key, schema in known.items() if _type_of(schema) == "array"), None)
    arguments: dict[str, Json] = {}
    for word in words:
        key, is_named, value = word.partition("=")
        if is_named and key in known:
            arguments[key] = _value(value, _type_of(known[key]))
        elif first_list is not None:
            listed = arguments.setdefault(first_list, [])
            assert isinstance(listed, list)
            listed.append(word)
        elif is_named and key.isidentifier():
            raise ConfigError(
                f'{spec.name} has no argument "{key}"{did_you_mean(key, known)}: it has {", ".join(known)}'
            )
        else:
            raise ConfigError(f'"{word}" names no argument of {spec.name}: write name=value, with {", ".join(known)}')
    return arguments


def _type_of(schema: Json) -> str:
    if not isinstance(schema, dict):
        return ""
    kinds = [schema, *(part for part in (schema.get("anyOf") or []) if isinstance(part, dict))]  # type: ignore[union-attr]
    return next((str(kind["type"]) for kind in kinds if kind.get("type") not in (None, "null")), "")


def _value(text: str, kind: str) -> Json:
    """Text where the tool takes text, else JSON."""
    if kind == "string":
        return text
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def _split(words: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == NEXT:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


async def _call(name: str, calls: Sequence[ToolCall], repo: Path) -> list[dict[str, Json]]:
    from slipstream.sandbox.local.provider import LocalProvider
    from slipstream.tools.toolset import Toolset
    from slipstream.types import SandboxSpec

    folder = await asyncio.to_thread(repo.resolve)
    provider = LocalProvider()
    answers: list[dict[str, Json]] = []
    try:
        sandbox = await provider.open(SandboxSpec(tree=str(folder)))
        async with Toolset.named([name]).open(sandbox=sandbox) as tools:
            for call in calls:
                (result,) = await tools.run([call], [])
                answers.append(
                    {
                        "text": result.text,
                        "is_error": result.is_error,
                        "hints": list(result.hints),
                        "seconds": round(result.end_s - result.start_s, 4),
                    }
                )
    finally:
        await provider.aclose()
    return answers
