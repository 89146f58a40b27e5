r"""Mathematics with a Python interpreter: GSM8K, MATH and files of the form of AIME.

| set | fields |
|---|---|
| GSM8K | `question`, `answer` that ends in `#### 42` |
| MATH | `problem`, `solution` with a `\boxed{...}` |
| MATH-500, AIME and most others | `problem` or `question`, `answer` |
"""

from __future__ import annotations

import slipstream as ss
from slipstream.recipes.react.files import first_of, path_of, tools_without

ASKED = r"Use Python where it helps. Finish with the answer alone, as \boxed{answer}."


def read_math(*, path: str = "math", num: int | None = None, without: str = "", turns: int = 10) -> tuple[ss.Task, ...]:
    """The problems of a file, or of the shipped sample. `without` names a tool that agents do not get."""
    tools = tools_without(("python", "finish"), without)
    return tuple(
        ss.Task(
            id=f"{number:05d}",
            instruction=f"{first_of(row, 'problem', 'question', 'Problem', 'Question')}\n\n{ASKED}",
            tools=tools,
            grader=ss.math(expected(row)),
            limits=ss.AgentLimits(turns=turns),
            sandbox=ss.SandboxSpec() if "python" in tools else None,
        )
        for number, row in enumerate(ss.read_rows(path_of(path), num))
    )


def expected(row: ss.Row) -> str:
    """The answer of a row. A solution is given whole: the grader reads what is boxed in it."""
    answer = row.fields.get("answer", row.fields.get("Answer"))
    if answer is not None:
        text = str(answer).strip()
        return text.rpartition("####")[2].strip() if "####" in text else text
    solution = row.text("solution")
    if "\\boxed" not in solution and "\\fbox" not in solution:
        raise row.wrong("the solution has no \\boxed{...}, and there is no answer")
    return solution[max(solution.rfind("\\boxed"), solution.rfind("\\fbox")) :]
