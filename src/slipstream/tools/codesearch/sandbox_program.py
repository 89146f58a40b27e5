"""Reports the files of a sandbox to code search outside. A standalone program (Python 3.8+, standard library only).

    sandbox_program.py < REQUEST > REPLY

Input: one JSON request on standard input. Output: one reply on standard output, packed with zlib: a line of JSON, then
the bytes of the files. Invariants: no link is followed, only regular files are opened, nothing is written; files that
vanish meanwhile are left out.

    {"op": "stat", "root": ".", "skipped": [NAME...], "binary": [SUFFIX...], "max_files": 100000}
        -> {"files": {PATH: [size, change time in ns, inode]}, "left_out": {PATH: WHY}, "now_ns": 123}
    {"op": "hash", "root": ".", "paths": [PATH...], "max_bytes": 1000000}
        -> {"hashes": {PATH: HEX, or "" for a binary file}}
    {"op": "read", "root": ".", "paths": [PATH...], "max_bytes": 1000000}
        -> {"sizes": [[PATH, SIZE]...]} and the bytes, in that order
"""

# ruff: noqa: PTH118, UP031

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

BINARY_PEEK = 8192


def walk(root: str, skipped: list[str]) -> Iterator[tuple[str, Any]]:
    """Every regular file below a folder, and in `None`'s place what was not entered."""
    todo = [""]
    never = frozenset(skipped)
    while todo:
        prefix = todo.pop()
        try:
            with os.scandir(os.path.join(root, prefix)) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name in never or path.count("/") > 128:
                            yield path + "/", None
                        else:
                            todo.append(path + "/")
                    elif entry.is_file(follow_symlinks=False):
                        yield path, entry.stat(follow_symlinks=False)
        except OSError:
            continue


def report_stat(request: dict[str, Any]) -> dict[str, Any]:
    now_ns = time.time_ns()
    files: dict[str, list[int]] = {}
    left_out: dict[str, str] = {}
    binary = frozenset(request["binary"])
    for path, known in walk(request["root"], request["skipped"]):
        try:
            path.encode()
        except UnicodeEncodeError:
            continue
        if known is None:
            left_out[path] = "a folder of a kind that is never searched"
        elif path.rpartition(".")[2].lower() in binary:
            continue
        elif len(files) >= request["max_files"]:
            left_out[path] = "more than %d files" % request["max_files"]
        else:
            files[path] = [known.st_size, known.st_ctime_ns, known.st_ino]
    return {"files": files, "left_out": left_out, "now_ns": now_ns}


def read(root: str, path: str, max_bytes: int) -> bytes:
    fd = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("no regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError("too large")
    return data


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    blobs: list[bytes] = []
    if request["op"] == "stat":
        reply = report_stat(request)
    else:
        hashes: dict[str, str] = {}
        sizes: list[tuple[str, int]] = []
        for path in request["paths"]:
            try:
                data = read(request["root"], path, request["max_bytes"])
            except OSError:
                continue
            if request["op"] == "read":
                sizes.append((path, len(data)))
                blobs.append(data)
            else:
                is_binary = b"\0" in data[:BINARY_PEEK]
                hashes[path] = "" if is_binary else hashlib.blake2b(data, digest_size=16).hexdigest()
        reply = {"hashes": hashes, "sizes": sizes}
    sys.stdout.buffer.write(zlib.compress(json.dumps(reply).encode() + b"\n" + b"".join(blobs), 1))


if __name__ == "__main__":
    main()
