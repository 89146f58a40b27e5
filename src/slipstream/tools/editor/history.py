"""The undo history of the editor.

Input: the bytes of a file before and after an edit. Output: the bytes before it, given the bytes after it.
Invariants: it keeps only the bytes that an edit removed, within a limit; an edit cannot be undone if the file changed
since.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MAX_BYTES = 8 << 20
MAX_EDITS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    path: str
    start: int
    old: bytes
    """The bytes before the edit."""
    num_new: int
    """The number of bytes that replaced them."""
    digest: bytes
    """Of the whole file after the edit."""
    created: bool
    """The edit created the file."""

    def before(self, after: bytes) -> bytes:
        return after[: self.start] + self.old + after[self.start + self.num_new :]


class History:
    """The edits of one rollout that can be undone. The oldest are dropped first."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_edits: int = MAX_EDITS) -> None:
        self._edits: list[Edit] = []
        self._max_bytes = max_bytes
        self._max_edits = max_edits

    def push(self, path: str, before: bytes | None, after: bytes) -> None:
        """`before` is None if the file did not exist."""
        old = before or b""
        head = _num_common(old, after)
        tail = _num_common(old[head:][::-1], after[head:][::-1])
        self._edits.append(
            Edit(
                path=path,
                start=head,
                old=old[head : len(old) - tail],
                num_new=len(after) - head - tail,
                digest=_digest(after),
                created=before is None,
            )
        )
        while len(self._edits) > self._max_edits or sum(len(edit.old) for edit in self._edits) > self._max_bytes:
            del self._edits[0]

    def last(self, path: str) -> Edit | None:
        return next((edit for edit in reversed(self._edits) if edit.path == path), None)

    def is_left_by(self, edit: Edit, now: bytes) -> bool:
        """Whether the file is unchanged since the edit."""
        return _digest(now) == edit.digest

    def drop_last(self, path: str) -> None:
        """Drop the last edit of a file after it was undone."""
        for place in reversed(range(len(self._edits))):
            if self._edits[place].path == path:
                del self._edits[place]
                return


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _num_common(one: bytes, other: bytes) -> int:
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
