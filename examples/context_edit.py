"""A long document in pieces: a tool that rewrites the conversation, as everything an agent does is a tool call.

    python examples/context_edit.py [URL]

The agent reads a piece at a time. `next_piece` takes its notes and replaces the conversation by the question, the notes
and the next piece, so that the context stays short however long the document is.
"""

import sys

import slipstream as ss

PIECES = [
    f"Page {page}. " + ("The password is tulip. " if page == 3 else "Nothing of note. ") * 3 for page in range(1, 6)
]


def page(number: int, notes: str) -> ss.Message:
    return ss.Message(
        role=ss.Role.USER,
        content=f"What is the password?\n\nYour notes: {notes or 'none'}\n\nPiece {number + 1}: {PIECES[number]}",
    )


@ss.tool(effect=ss.Effect.STATE)
class NextPiece:
    """Read on. Your notes are kept, everything else is forgotten."""

    def __init__(self) -> None:
        self.place = 0

    def call(self, notes: str) -> ss.ContextEdit | str:
        if self.place + 1 == len(PIECES):
            return "That was the last piece: finish with your answer."
        self.place += 1
        return ss.ContextEdit(messages=(page(self.place, notes),), note=notes)


tasks = [
    ss.Task(
        id="password",
        instruction=page(0, "").content,
        tools=[NextPiece, ss.finish],
        grader=ss.exact("tulip"),
    )
]


def reader(call: ss.ScriptedCall) -> ss.Message:
    """Stands in for a model: it notes the password when it sees it."""
    text = call.messages[-1].content
    if text.startswith("That was the last"):
        return ss.act("finish", answer="tulip" if "tulip" in call.messages[0].content else "unknown")
    return ss.act("next_piece", notes="it is tulip" if "tulip" in text else "")


if __name__ == "__main__":
    result = ss.evaluate(tasks, model=sys.argv[1] if len(sys.argv) > 1 else reader)
    (rollout,) = result.rollouts()
    print(f"mean reward {result.mean_reward:.3f} in {len(rollout.turns)} turns")
