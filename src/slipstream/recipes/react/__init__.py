"""Reasoning, code and questions: tasks of your own, files of public sets, or a shipped sample of each.

    slipstream eval react                                       # the sample, with a scripted agent
    slipstream eval react tasks=tasks.jsonl model.base_url=http://localhost:8000/v1
    slipstream eval react tasks.sets.math=slipstream.recipes.react.mathematics:read_math \\
        tasks.sets.math.args.path=gsm8k.jsonl model.base_url=http://localhost:8000/v1
"""

from __future__ import annotations

import slipstream as ss


def recipe() -> ss.EvalConfig:
    return ss.EvalConfig(name="react", tasks=ss.TasksConfig(), model=ss.ModelConfig(kind="chat"))


def sample() -> ss.EvalConfig:
    """A mixture of all kinds of tasks, small enough to run anywhere."""
    sets = {
        "math": ss.TaskSetConfig(source=f"{__name__}.mathematics:read_math"),
        "functions": ss.TaskSetConfig(source=f"{__name__}.programs:read_programs", args={"path": "functions"}),
        "programs": ss.TaskSetConfig(source=f"{__name__}.programs:read_programs", args={"path": "programs"}),
        "questions": ss.TaskSetConfig(source=f"{__name__}.questions:read_questions"),
    }
    return ss.EvalConfig(
        name="react",
        tasks=ss.TasksConfig(sets=sets),
        model=ss.ModelConfig(kind="scripted", script=f"{__name__}.policy:policy", max_tokens=2_048),
    )
