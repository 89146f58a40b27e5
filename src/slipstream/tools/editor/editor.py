"""edit: views, creates and changes text files, exactly.

Input: one of five commands and a path. Output: numbered lines of the file, or the result of the change. Invariants: a
change touches only the bytes it was asked to: line endings, encoding, byte order mark, tabs and mode stay. A failed
command leaves the file unchanged, as far as the sandbox allows. The undo history lives as long as the rollout. A syntax
error is reported but does not prevent a change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError, ToolError
from slipstream.offload import OffloadLimits, WorkTooLarge, by_size
from slipstream.sandbox.base import Sandbox
from slipstream.tools.base import Effect, ToolContext
from slipstream.tools.define import TypedTool, class_tool
from slipstream.tools.editor.history import History
from slipstream.tools.editor.places import EditorPlace, PlaceKind, list_folder, look, missing
from slipstream.tools.editor.show import around, view_lines, view_whole
from slipstream.tools.editor.syntax import find_problem
from slipstream.tools.editor.target import Edited, EditWords, inserted, replaced, text_of
from slipstream.tools.editor.text import NotText, TextFile, common_ends, decode, fold, line_at, split_lines
from slipstream.types import File

MAX_BYTES = 4 << 20
WORDS = EditWords()
NEW_SYNTAX_ERROR = "[new syntax error"
"""Starts a line of the answer when an edit broke the syntax; hints look for it."""

_LIMITS = OffloadLimits(cpu_s=10, result_bytes=64 << 20)
"""For the process that works on a large file."""
_SYNTAX_SHARE = 0.5
"""The largest share of the remaining time for the syntax check."""

T = TypeVar("T")
Command = Literal["view", "create", "str_replace", "insert", "undo"]


class Editor:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._history = History()

    async def call(
        self,
        command: Annotated[Command, "what to do"],
        path: Annotated[str, "the file, or for view a folder; a relative path is below the working directory"],
        view_range: Annotated[
            list[int] | None, "for view: first and last line, from 1; -1 is the end", Field(min_length=2, max_length=2)
        ] = None,
        file_text: Annotated[str | None, "for create: all of the new file's text"] = None,
        old_str: Annotated[
            str | None, "for str_replace: the text to replace, exactly as in the file, once in it"
        ] = None,
        new_str: Annotated[str | None, "for str_replace and insert: the text to put there"] = None,
        insert_line: Annotated[int | None, "for insert: the line to insert after; 0 is the top", Field(ge=0)] = None,
        *,
        ctx: ToolContext,
    ) -> str:
        """View, create and edit text files. view shows the numbered lines of a file (long code is folded to an outline:
        use view_range) or what a folder holds; create makes a new file; str_replace replaces one exact piece of text;
        insert adds lines; undo takes back the last edit of a file.
        """
        place = await look(ctx.need_sandbox(), path, timeout_s=ctx.remaining_s())
        match command:
            case "view":
                return await self._view(place, view_range, ctx)
            case "create":
                return await self._create(place, _given("file_text", file_text, command), ctx)
            case "str_replace":
                return await self._replace(place, _given("old_str", old_str, command), new_str or "", ctx)
            case "insert":
                if insert_line is None:
                    raise ToolError("edit: insert needs insert_line, the line to insert after (0 is the top)")
                return await self._insert(place, insert_line, _given("new_str", new_str, command), ctx)
            case "undo":
                return await self._undo(place, ctx)

    # ------------------------------------------------------------ commands

    async def _view(self, place: EditorPlace, view_range: list[int] | None, ctx: ToolContext) -> str:
        if place.kind is PlaceKind.FOLDER:
            if view_range is not None:
                raise ToolError(f"edit: {place.path} is a folder: leave view_range out")
            return await list_folder(ctx.need_sandbox(), place.path, timeout_s=ctx.remaining_s())
        data = await self._read(place, ctx)
        return await _worked_on(data, _viewed, place, data, view_range)

    async def _create(self, place: EditorPlace, text: str, ctx: ToolContext) -> str:
        before: bytes | None = None
        if place.kind is PlaceKind.UNKNOWN:
            with suppress(SandboxFileError):
                before = await self._read(place, ctx)
        elif place.kind is not PlaceKind.MISSING:
            before = await self._read(place, ctx)
        if before:
            raise ToolError(f"edit: {place.path} is already there: change it with str_replace, or create another path")
        data = _writable(text).encode("utf-8")
        await self._write(place, before, data, ctx)
        told = f"Created {place.path}: {_count(len(split_lines(fold(text))), 'line')}."
        return "\n".join((told, *await self._syntax(place, before, data, ctx)))

    async def _replace(self, place: EditorPlace, old: str, new: str, ctx: ToolContext) -> str:
        data = await self._read(place, ctx)
        after, told = await _worked_on(data, _replaced, place, data, old, _writable(new))
        return await self._change(place, data, after, told, ctx)

    async def _insert(self, place: EditorPlace, after_line: int, new: str, ctx: ToolContext) -> str:
        if not new:
            raise ToolError("edit: new_str is empty: give the lines to insert")
        data = await self._read(place, ctx)
        after, told = await _worked_on(data, _inserted, place, data, after_line, _writable(new))
        return await self._change(place, data, after, told, ctx)

    async def _undo(self, place: EditorPlace, ctx: ToolContext) -> str:
        edit = self._history.last(place.real)
        if edit is None:
            raise ToolError(f"edit: there is no edit of {place.path} to undo: only edits by this tool can be undone")
        now = None if place.kind is PlaceKind.MISSING else await self._read(place, ctx)
        if now is None or not self._history.is_left_by(edit, now):
            raise ToolError(
                f"edit: {place.path} was changed since its last edit, by something else: undo would lose that. "
                "View it, and change it with str_replace"
            )
        sandbox = ctx.need_sandbox()
        if edit.created:
            result = await sandbox.exec(["rm", "-f", "--", place.path], timeout_s=ctx.remaining_s())
            if result.exit_code != 0:
                why = result.stderr.text().strip()[:200] or f"rm ended with {result.exit_code}"
                raise ToolError(f"edit: {place.path} could not be removed ({why}): remove it with bash")
            self._history.drop_last(edit.path)
            return f"Undid the creation of {place.path}: it is gone again."
        before = edit.before(now)
        await _put(sandbox, place, now, before)
        self._history.drop_last(edit.path)
        about = await _worked_on(now, _about_undone, now, before)
        return "\n".join((f"Undid the last edit of {place.path}.", *about))

    # ------------------------------------------------------------ reading and writing

    async def _read(self, place: EditorPlace, ctx: ToolContext) -> bytes:
        if place.kind is PlaceKind.MISSING:
            raise missing(place)
        if place.kind is PlaceKind.FOLDER:
            raise ToolError(f"edit: {place.path} is a folder: view it, and give the path of a file in it")
        if place.kind is PlaceKind.OTHER:
            raise ToolError(f"edit: {place.path} is no regular file: give the path of a text file")
        if place.size > self._max_bytes:
            raise ToolError(
                f"edit: {place.path} has {place.size} bytes, more than the {self._max_bytes} that can be edited: "
                "look at parts of it with bash, such as sed -n '1,80p'"
            )
        return await ctx.need_sandbox().read(place.path, max_bytes=self._max_bytes)

    async def _change(self, place: EditorPlace, before: bytes, after: bytes, told: str, ctx: ToolContext) -> str:
        await self._write(place, before, after, ctx)
        return "\n".join((told, *await self._syntax(place, before, after, ctx)))

    async def _write(self, place: EditorPlace, before: bytes | None, after: bytes, ctx: ToolContext) -> None:
        await _put(ctx.need_sandbox(), place, before, after)
        real = place.real
        if before is None and place.kind is PlaceKind.MISSING:
            with suppress(SandboxError):
                real = (await look(ctx.need_sandbox(), place.path, timeout_s=ctx.remaining_s())).real
        self._history.push(real, before, after)

    async def _syntax(self, place: EditorPlace, before: bytes | None, after: bytes, ctx: ToolContext) -> list[str]:
        """A line if the file does not parse: what is wrong, and whether this is new."""
        sandbox = ctx.need_sandbox()
        problem = await find_problem(sandbox, place.path, after, timeout_s=ctx.remaining_s() * _SYNTAX_SHARE)
        if problem is None:
            return []
        past = None
        if before:
            past = await find_problem(sandbox, place.path, before, timeout_s=ctx.remaining_s() * _SYNTAX_SHARE)
        if past is None:
            return [f"{NEW_SYNTAX_ERROR}, {problem}]"]
        return [f"[syntax error, {problem}; there was one before this edit too: {past}]"]


def make_edit(*, max_bytes: int = MAX_BYTES) -> TypedTool:
    return class_tool(partial(Editor, max_bytes), name="edit", effect=Effect.SANDBOX)


edit = make_edit()


# ---------------------------------------------------------------- arguments


def _given(name: str, value: str | None, command: str) -> str:
    if value is None:
        raise ToolError(f"edit: {command} needs {name}")
    return value


def _writable(text: str) -> str:
    if "\0" in text:
        raise ToolError("edit: the text has a NUL character, which would make the file binary: leave it out")
    return text


def _range(place: EditorPlace, view_range: list[int], num_lines: int) -> tuple[int, int]:
    first, last = view_range
    if last == -1:
        last = num_lines
    if first < 1 or last < first:
        raise ToolError(f"edit: view_range {view_range}: give first and last line, from 1 to {num_lines}")
    if first > num_lines:
        raise ToolError(
            f"edit: view_range {view_range} is beyond the end: {place.path} has {_count(num_lines, 'line')}"
        )
    return first, min(last, num_lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------- files


def _remarks(file: TextFile) -> list[str]:
    """Notes on what the lines do not show."""
    told: list[str] = []
    if file.encoding != "utf-8":
        told.append(f"[the file is in {file.encoding}]")
    if file.has_undecodable:
        told.append("[some bytes are no text and shown as \\x..: edit around them]")
    return told


async def _put(sandbox: Sandbox, place: EditorPlace, before: bytes | None, after: bytes) -> None:
    """Write a file; if that fails, restore its previous content."""
    try:
        await sandbox.write({place.path: File(data=after, mode=place.mode)})
    except (SandboxFileError, SandboxLimitError) as failed:
        try:
            if before is None:
                await sandbox.exec(["rm", "-f", "--", place.path], timeout_s=5.0)
            elif await sandbox.read(place.path, max_bytes=len(before) + len(after)) != before:
                await sandbox.write({place.path: File(data=before, mode=place.mode)})
        except (SandboxFileError, SandboxLimitError) as lost:
            raise ToolError(f"edit: {failed}; and what was there could not be put back: {lost}") from failed
        raise ToolError(f"edit: {failed}; nothing was changed") from failed


def _about(folded: str, start: int, end: int) -> list[str]:
    """The lines with the characters from `start` to `end`, and a few lines around them."""
    lines = split_lines(folded)
    if not lines:
        return ["[it is empty now]"]
    first = min(line_at(folded, start), len(lines))
    return [around(lines, first, max(first, min(line_at(folded, max(start, end - 1)), len(lines))))]


# ---------------------------------------------------------------- work on the text of a file


async def _worked_on(data: bytes, function: Callable[..., T], *args: object) -> T:
    """Call a function whose work grows with the size of a file; for a large file, in another process."""
    num_lines = data.count(b"\n") + data.count(b"\r")
    try:
        return await by_size(function, *args, num_bytes=max(len(data) // 8, 6 * num_lines), limits=_LIMITS)
    except WorkTooLarge as raised:
        raise ToolError(f"edit: the file is too large for this ({raised}): change it with bash") from raised


def _viewed(place: EditorPlace, data: bytes, view_range: list[int] | None) -> str:
    file = text_of(place.path, data, WORDS.prefix)
    lines = split_lines(file.folded)
    if not lines:
        return f"[{place.path} is empty]"
    if view_range is None:
        text = view_whole(place.path, lines)
    else:
        first, last = _range(place, view_range, len(lines))
        text = view_lines(lines, first, last)
    return "\n".join((text, *_remarks(file)))


def _replaced(place: EditorPlace, data: bytes, old: str, new: str) -> tuple[bytes, str]:
    return _told(place, replaced(place.path, data, old, new, WORDS))


def _inserted(place: EditorPlace, data: bytes, after_line: int, new: str) -> tuple[bytes, str]:
    return _told(place, inserted(place.path, data, after_line, new, WORDS))


def _told(place: EditorPlace, edited: Edited) -> tuple[bytes, str]:
    about = _about(edited.folded, edited.start, edited.end)
    return edited.data, "\n".join((f"Edited {place.path}:", *about, *edited.notes))


def _about_undone(now: bytes, before: bytes) -> list[str]:
    try:
        one, other = decode(now).folded, decode(before).folded
    except NotText:
        return []
    head, tail = common_ends(one, other)
    return _about(other, head, len(other) - tail)
