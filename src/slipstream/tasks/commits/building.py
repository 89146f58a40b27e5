"""Builds the line of a task file from a commit whose tests were tried. Pure.

Invariants: fix, tests and their ids are only in the grading; the same commit gives the same line.
"""

from __future__ import annotations

import re

from slipstream.tasks.commits.checkout import Checkout, texts_of
from slipstream.tasks.commits.selection import num_changed_lines
from slipstream.tasks.commits.statement import CommitStatement, instruction_of
from slipstream.tasks.commits.trial import Trial
from slipstream.tasks.factory.building import COMMAND, MIN_TIMEOUT_S, TOOLS, Made, protected
from slipstream.tasks.factory.difficulty import Tier
from slipstream.tasks.factory.package.runner import WORKDIR, environment
from slipstream.tasks.factory.package.sources import normal_name
from slipstream.types import Json

EASY_LINES, MEDIUM_LINES = 6, 30
"""Changed lines of a fix in one file that is still easy, or medium."""


def task_id(checkout: Checkout) -> str:
    """`click-8.2.0-2c8cd3ac-medium`: a project, its version, the commit and the tier, as `factory.parts` reads it."""
    layout = checkout.reference.layout
    version = re.sub(r"[^A-Za-z0-9.]+", ".", layout.version)
    return f"{normal_name(layout.name)}-{version}-{checkout.candidate.commit.id[:10]}-{tier_of(checkout)}"


def tier_of(checkout: Checkout) -> Tier:
    num_lines = num_changed_lines(checkout.oracle)
    if len(checkout.fix) > 1 or num_lines > MEDIUM_LINES:
        return Tier.HARD
    return Tier.EASY if num_lines <= EASY_LINES else Tier.MEDIUM


def build_line(checkout: Checkout, trial: Trial, statement: CommitStatement, *, repo: str) -> Made:
    layout, commit, id = checkout.reference.layout, checkout.candidate.commit, task_id(checkout)
    env = environment(layout.root)
    line: dict[str, Json] = {
        "id": id,
        "instruction": instruction_of(statement, name=layout.name, version=layout.version, workdir=WORKDIR),
        "tools": list(TOOLS),
        "limits": {"turns": 60, "context_tokens": 32_768, "tool_seconds": 600.0},
        "sandbox": {
            "workdir": WORKDIR,
            "tree": f"trees/{id}",
            "files": {path: text for path, text in checkout.broken.items() if text is not None},
            "env": dict(env),
            "limits": {"memory_mb": 1024, "processes": 128, "disk_mb": 128, "file_mb": 64},
        },
        "patch_of": WORKDIR,
        "grading": {
            "kind": "tests",
            "command": list(COMMAND),
            "parser": "report",
            "fail_to_pass": [*trial.failing],
            "pass_to_pass": [*trial.passing],
            "tests": [*sorted({test.partition("[")[0] for test in (*trial.failing, *trial.passing)})],
            "restore": dict(texts_of(checkout.tests)),
            "drop": [*protected(checkout.reference)],
            "env": dict(env),
            "timeout_s": MIN_TIMEOUT_S * (2 + int(20 * trial.seconds / MIN_TIMEOUT_S)),
            "oracle": checkout.oracle.decode(),
        },
    }
    facts: dict[str, Json] = {
        "id": id,
        "package": checkout.reference.label,
        "tier": str(tier_of(checkout)),
        "difficulty": None,
        "mistakes": [],
        "repo": repo,
        "commit": commit.id,
        "parent": commit.parent,
        "created": commit.when,
        "version": layout.version,
        "statement": statement.source,
        "told": [*statement.names, *statement.messages],
        "num_lines": num_changed_lines(checkout.oracle),
        "num_failing": len(trial.failing),
        "num_passing": len(trial.passing),
        "num_unstable": trial.num_unstable,
        "not_installed": [*checkout.missing],
        "test_patch": checkout.test_patch.decode(),
        "guards": [],
    }
    return Made(line=line, facts=facts, failing=trial.failing, passing=trial.passing, changed={})
