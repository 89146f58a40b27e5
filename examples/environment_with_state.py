"""An environment with state of its own: a class is a tool, and every rollout gets a fresh one.

    python examples/environment_with_state.py [URL]

A guessing game. The tool knows the secret, which the model must find by asking.
"""

import sys

import slipstream as ss


@ss.tool
class Guess:
    """Guess the secret number, from 1 to 100. Says whether the secret is higher or lower."""

    def __init__(self) -> None:
        self.num_guesses = 0

    def call(self, number: int, ctx: ss.ToolContext) -> str | ss.Finish:
        self.num_guesses += 1
        secret = sum(map(ord, ctx.messages[0].content)) % 100 + 1  # a different one for each task
        if number == secret:
            return ss.Finish(answer=str(self.num_guesses))
        return "higher" if number < secret else "lower"


def few_guesses(answer: str) -> float:
    """1 for seven guesses or fewer, which is what halving needs; less for more."""
    return min(1.0, 7 / int(answer)) if answer else 0.0


tasks = [
    ss.Task(
        id=name,
        instruction=f"Play game {name}: find the secret number with few guesses.",
        tools=[Guess],
        grader=few_guesses,
        limits=ss.AgentLimits(turns=20),
    )
    for name in ("one", "two", "three")
]


def halving(call: ss.ScriptedCall) -> ss.Message:
    """Stands in for a model: it halves what is left."""
    low, high = 1, 100
    guesses = [call.arguments["number"] for message in call.messages for call in message.calls]
    answers = [message.content for message in call.messages if message.role is ss.Role.TOOL]
    for guess, answer in zip(guesses, answers, strict=True):
        low, high = (int(str(guess)) + 1, high) if answer == "higher" else (low, int(str(guess)) - 1)
    return ss.act("guess", number=(low + high) // 2)


if __name__ == "__main__":
    result = ss.evaluate(tasks, model=sys.argv[1] if len(sys.argv) > 1 else halving)
    print(f"mean reward {result.mean_reward:.3f}")
