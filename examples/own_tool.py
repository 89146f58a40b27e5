"""A tool and a grader of your own, evaluated on any OpenAI-compatible server.

    python examples/own_tool.py http://localhost:8000/v1

Without a URL a script plays the model, to show the flow.
"""

import sys

import slipstream as ss


@ss.tool
def count(letter: str, word: str) -> str:
    """Count how often a letter occurs in a word."""
    return str(word.count(letter))


def grade(answer: str, task: ss.Task) -> float:
    return float(answer.strip() == task.extra["expected"])


tasks = [
    ss.Task(
        id=f"{word}-{letter}",
        instruction=f"How many times does the letter {letter} occur in {word}?",
        tools=[count, ss.finish],
        grader=grade,
        extra={"expected": str(word.count(letter))},  # the agent never sees it
    )
    for word, letter in [("strawberry", "r"), ("banana", "a"), ("mississippi", "s")]
]


def script(call: ss.ScriptedCall) -> ss.Message:
    """Stands in for a model: it asks the tool, then finishes with what the tool said."""
    if len(call.messages) > 1:
        return ss.act("finish", answer=call.messages[-1].content)
    words = call.messages[0].content.rstrip("?").split()
    return ss.act("count", letter=words[words.index("letter") + 1], word=words[-1])


if __name__ == "__main__":
    result = ss.evaluate(tasks, model=sys.argv[1] if len(sys.argv) > 1 else script, samples=4)
    print(f"mean reward {result.mean_reward:.3f} of {result.num_rollouts} rollouts, recorded in {result.run_path}")
