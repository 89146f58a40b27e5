"""The lookups' model, half a million random weights, and its teacher, who knows the form of every step and is faulty.

Each choice of the teacher (which page of those found, which person on it, which fact) is right with probability
`quality`; otherwise it is the next one in the list, always. So what is right can be learnt from it, but not that it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import slipstream as ss
from slipstream.recipes.research.lookups import (
    DISTRICTS,
    PEOPLE,
    RESULTS,
    TURNS,
    WHAT,
    WHO,
    Split,
    answer_of,
    lookups,
    pages,
)

PIECES = r" [a-z]+|(?<=[\n\"-])[a-z]+(?=[ :\"-])"
"""A word, with the space before it if there is one, is a piece of its own: so that a choice is one token."""
FAMILY_ARGS: Mapping[str, ss.Json] = {"show_tools": False}
_HEARD = re.compile(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", re.DOTALL)
_ASKED = re.compile(r"(\w+): (\w+) of (\w+) of (\w+)")


def make_model(folder: Path, *, seed: int, shape: ss.TinyShape | None = None) -> Path:
    return ss.make_tiny_model(folder, texts(), seed=seed, shape=shape or ss.TinyShape(), pieces=PIECES)


def texts(world: int = 0) -> Iterator[str]:
    """Every message and reply, in the pieces that are encoded."""
    known = pages(world)
    yield "assistant\n"
    for district, what, who, name in product(DISTRICTS, WHAT, WHO, PEOPLE):
        yield f"user\n{district}: {what} of {who} of {name}"
    for (district, name), page in known.items():
        yield f"tool\n{page.code} {name} {district}\n{page.code} {name} {district}"
        yield f"tool\n{page.text}"
        yield ss.reply_text(ss.act("search", query=f"{name} {district}"))
        yield ss.reply_text(ss.act("open_page", url=page.code))
    for value in sorted({each for values in WHAT.values() for each in values} | set(PEOPLE)):
        yield ss.reply_text(ss.act("finish", answer=value))


def teacher(*, quality: float = 0.6) -> ss.Script:
    if not 0.0 <= quality <= 1.0:
        raise ss.ConfigError(f"quality={quality}: give a probability, from 0 to 1")

    def script(scene: ss.ScriptedCall) -> ss.Line:
        chance = random.Random(scene.seed)

        def choose(right: str, known: Iterable[str]) -> str:
            names = list(known)
            return right if chance.random() < quality else names[(names.index(right) + 1) % len(names)]

        asked = _ASKED.search(scene.prompt_text)
        assert asked is not None, "the teacher is for lookups"
        district, what, who, name = asked.groups()
        heard = [part.strip().splitlines() for part in _HEARD.findall(scene.prompt_text)]
        match len(heard):
            case 0:
                return ss.act("search", query=f"{name} {district}")
            case 1 | 3:
                codes = [line.split()[0] for line in heard[-1]]
                return ss.act("open_page", url=choose(codes[0], codes))
            case 2:
                return ss.act("search", query=f"{_facts(heard[-1]).get(choose(who, WHO), name)} {district}")
            case _:
                return ss.act("finish", answer=_facts(heard[-1]).get(choose(what, WHAT), name))

    return script


def _facts(lines: list[str]) -> dict[str, str]:
    words = " ".join(lines).split()
    return dict(zip(words[::2], words[1::2], strict=False))


def demonstrations(folder: Path, *, num: int, seed: int, quality: float) -> list[ss.Demonstration]:
    """A rollout of the teacher on each of `num` training tasks. What tools answer is taken from the corpus: a page is
    what its source says, and the results are the page itself and then another of the same district or name."""
    writer = ss.DemonstrationWriter(folder, family_args=FAMILY_ARGS)
    drawn = lookups(num=num, seed=seed, split=Split.TRAIN)
    script, chance = teacher(quality=quality), random.Random(f"lookup results {seed}")
    made = []
    for number, each in enumerate(drawn):
        task = ss.Task(id=f"{number:05d}", instruction=each.question, grader=ss.exact(answer_of(each, 0)))
        made.append(_demonstration(writer.begin(task, seed=seed), script, chance))
    return made


def _demonstration(draft: ss.DraftDemonstration, script: ss.Script, chance: random.Random) -> ss.Demonstration:
    for turn in range(TURNS):
        reply = draft.ask(script)
        assert isinstance(reply, ss.Message)
        draft.say(reply)
        (call,) = reply.calls
        if call.name == "finish" or turn + 1 == TURNS:
            break
        assert draft.hear([ss.Message(role=ss.Role.TOOL, content=_answer(call, chance))]), "chatml continues"
    return draft.finish()


def _answer(call: ss.ToolCall, chance: random.Random, world: int = 0) -> str:
    known = pages(world)
    if call.name == "open_page":
        return next(page.text for page in known.values() if page.code == call.arguments["url"])
    name, district = str(call.arguments["query"]).split()
    others = [key for key in known if (key[0] == district) != (key[1] == name)]
    found = [(district, name), *chance.sample(others, RESULTS - 1)]
    return "\n".join(f"{known[key].code} {key[1]} {key[0]}" for key in found)
