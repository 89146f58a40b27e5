"""Gradings of programs in real sandboxes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import pytest

from slipstream.graders.base import GradeContext, grade_work
from slipstream.graders.programs.grader import ProgramsGrader
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import Artifact, Grading, SandboxLimits, SandboxSpec, Verdict

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def graded(grading: Grading, works: Sequence[str | Artifact], *, grader: ProgramsGrader | None = None) -> list[Verdict]:
    """What the grading says of each work."""
    grader = grader or ProgramsGrader()

    async def main() -> list[Verdict]:
        provider = LocalProvider()
        context = GradeContext(
            provider=provider, sandbox=SandboxSpec(limits=SandboxLimits(memory_mb=256, processes=32, disk_mb=64))
        )
        grader.check(grading.spec)
        try:
            found: list[Verdict] = []
            for work in works:
                artifact = work if isinstance(work, Artifact) else Artifact(files={"solution.py": work.encode()})
                found.append(await grade_work(grader, grading, artifact, context))
            return found
        finally:
            await provider.aclose()

    return asyncio.run(main())
