"""The tool, on a sandbox with a root that can be opened, and on one that only runs programs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from slipstream.errors import SandboxBroken, ToolError
from slipstream.sandbox import LocalProvider
from slipstream.sandbox.base import Captured, ExecResult, Rooted
from slipstream.sandbox.fake import FakeSandbox, few_programs
from slipstream.tools import CallResult, Effect, Observation, Toolset, resolve
from slipstream.tools.codesearch import Store, host_folder
from slipstream.tools.codesearch.remote import MAX_REPLY_BYTES, FetchedFiles, _unpacked
from slipstream.tools.codesearch.tool import Service, make_search
from slipstream.tools.codesearch.tree import CodeTree
from slipstream.types import File, Json, SandboxSpec, ToolCall

from .small_repository import FILES, written


class FolderSandbox(FakeSandbox):
    """Runs programs in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SandboxSpec(), few_programs, "folder")
        self.folder = folder
        self.requests: list[bytes] = []

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        self.requests.append(stdin)
        argv = [sys.executable if argv[0] == "python3" else argv[0], *argv[1:]]
        ran = await asyncio.to_thread(subprocess.run, argv, input=stdin, cwd=self.folder, capture_output=True)
        out, err = (Captured(head=data, num_bytes=len(data)) for data in (ran.stdout, ran.stderr))
        return ExecResult(exit_code=ran.returncode, stdout=out, stderr=err)


class RootedSandbox(FolderSandbox):
    """One whose root is that of this machine."""

    @contextmanager
    def root(self) -> Iterator[int]:
        with host_folder(Path("/"))._root() as fd:
            yield fd

    def rights(self) -> AbstractContextManager[None]:
        return nullcontext()


def ask(
    sandbox: FakeSandbox, store: Store, *calls: dict[str, Json], change: tuple[Path, str] | None = None
) -> list[CallResult]:
    service = Service(store)

    async def main() -> list[CallResult]:
        results: list[CallResult] = []
        async with Toolset([make_search(service=lambda: service)]).open(sandbox=sandbox) as opened:
            for number, arguments in enumerate(calls):
                if number and change is not None:
                    change[0].write_text(change[1])
                results += await opened.run([ToolCall(id=f"c{number}", name="search", arguments=arguments)], ())
        return results

    try:
        return asyncio.run(main())
    finally:
        service.threads.shutdown()


def text_of(result: CallResult) -> str:
    assert isinstance(result.outcome, Observation)
    return result.outcome.text


@pytest.fixture(params=[FolderSandbox, RootedSandbox])
def sandbox(request: pytest.FixtureRequest) -> Iterator[FolderSandbox]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # files are read with the rights of another user, where we are root
        made: FolderSandbox = request.param(written(Path(name), FILES))
        assert isinstance(made, Rooted) is (request.param is RootedSandbox)
        yield made


def test_a_definition_and_then_its_edited_form(sandbox: FolderSandbox, store: Store) -> None:
    query: dict[str, Json] = {"terms": ["tax"]}
    file = sandbox.folder / "shop/rates.py"
    first, second = ask(sandbox, store, query, query, change=(file, "\ndef tax(amount):\n    return 0\n"))
    assert text_of(first).startswith("shop/rates.py:4-5 function tax\n")
    assert text_of(second).startswith("shop/rates.py:2-3 function tax\n")
    assert isinstance(first.outcome, Observation)
    assert [hint.name for hint in first.outcome.hints] == ["search_callers"]


def test_text_and_files_that_are_no_code(sandbox: FolderSandbox, store: Store) -> None:
    (found,) = ask(sandbox, store, {"terms": ["Run the plugin"], "mode": "text"})
    assert "README.md\n  3| Run the plugin" in text_of(found)


def test_bad_arguments_are_told_to_the_model(sandbox: FolderSandbox, store: Store) -> None:
    wrong, unknown = ask(sandbox, store, {"terms": ["(a"], "mode": "regex"}, {"terms": ["a"], "mode": "nonsense"})
    assert "is not a regular expression" in text_of(wrong)
    assert 'argument "mode"' in text_of(unknown)


def test_files_travel_once_for_all_rollouts(tmp_path: Path) -> None:
    store = Store()
    try:
        first, second = (FolderSandbox(written(tmp_path / name, FILES)) for name in ("a", "b"))
        ask(first, store, {"terms": ["tax"]})
        ask(second, store, {"terms": ["tax"]})
        assert [request.split(b'"')[3] for request in first.requests] == [b"stat", b"hash", b"read"]
        assert [request.split(b'"')[3] for request in second.requests] == [b"stat", b"hash"]
        assert store.num_bases == 2  # one of code, one of other texts
    finally:
        store.close()


def test_a_sandbox_without_python_says_what_to_do(store: Store) -> None:
    sandbox = FakeSandbox(SandboxSpec(), few_programs, "bare")
    (found,) = ask(sandbox, store, {"terms": ["tax"]})
    assert "the sandbox has no python3: look with other tools" in text_of(found)


def test_what_comes_out_of_a_sandbox_is_bounded_and_checked(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ToolError, match="gave no proper answer"):
        _unpacked(b"no zlib")
    with pytest.raises(ToolError, match="gave no proper answer"):
        _unpacked(zlib.compress(b"{}\n" + bytes(MAX_REPLY_BYTES), 1))
    files = FetchedFiles(FolderSandbox(written(tmp_path, FILES)), store)
    asyncio.run(files.fetch(CodeTree(files, store), 30.0))
    assert sorted(files.stat()) == sorted(FILES)
    assert sorted(files.stat(code_only=True)) == sorted(path for path in FILES if path.endswith((".py", ".pyi")))


def test_what_comes_out_of_a_sandbox_is_read_beside_the_event_loop(tmp_path: Path, store: Store) -> None:
    packed = zlib.compress(b"[" + b"[]," * (MAX_REPLY_BYTES // 32), 1)

    class Talkative(FolderSandbox):
        async def exec(self, argv: Sequence[str], **_: object) -> ExecResult:
            return ExecResult(
                exit_code=0, stdout=Captured(head=packed, num_bytes=len(packed)), stderr=Captured(head=b"")
            )

    async def main() -> float:
        files = FetchedFiles(Talkative(tmp_path), store)
        before_s = time.thread_time()
        with pytest.raises(ToolError, match="gave no proper answer"):
            await files.fetch(CodeTree(files, store), 60.0)
        return time.thread_time() - before_s

    assert asyncio.run(main()) < 0.1


def test_a_lost_sandbox_is_no_failure_of_the_tool(tmp_path: Path, store: Store) -> None:
    class Lost(RootedSandbox):
        async def exec(self, argv: Sequence[str], **_: object) -> ExecResult:
            if argv[0] == "pwd":
                return ExecResult(exit_code=0, stdout=Captured(head=b"/gone", num_bytes=5), stderr=Captured(head=b""))
            raise SandboxBroken("it used up its memory")

    with pytest.raises(SandboxBroken):
        ask(Lost(tmp_path), store, {"terms": ["tax"]})


def test_in_a_real_sandbox_edits_are_seen_and_links_lead_nowhere(store: Store) -> None:
    service = Service(store)
    files = {path: File(data=str(text).encode()) for path, text in FILES.items()}
    change = "printf 'def fresh(): 0\\n' >> shop/rates.py; ln -s /etc/passwd leak.py; mkfifo pipe.py; ln -s / root"

    async def main() -> list[str]:
        provider = LocalProvider()
        sandbox = await provider.open(SandboxSpec(files=files))
        try:
            async with Toolset([make_search(service=lambda: service)]).open(sandbox=sandbox) as opened:

                async def search(**arguments: Json) -> str:
                    (result,) = await opened.run([ToolCall(id="c", name="search", arguments=arguments)], ())
                    return text_of(result)

                before = await search(terms=["Order.save"])
                await sandbox.exec(["sh", "-c", change], timeout_s=20)
                return [before, await search(terms=["fresh"]), await search(terms=["root:x:0"], mode="text")]
        finally:
            await sandbox.aclose()
            await provider.aclose()

    try:
        before, fresh, leaked = asyncio.run(main())
    finally:
        service.threads.shutdown()
    assert "shop/models.py:15-16 method Base.save" in before
    assert fresh.startswith("shop/rates.py:6 function fresh\n")
    assert "/bin/" not in leaked


def test_it_is_pure_and_known_by_its_name() -> None:
    tool = resolve("slipstream.tools.codesearch.tool:search")
    assert (tool.spec.name, tool.effect, tool.concurrent) == ("search", Effect.PURE, True)
    assert tool.fresh() is not tool
