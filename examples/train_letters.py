from functools import partial

import slipstream as ss


@ss.tool
def count(letter: str, word: str) -> str:
    """Count how often a letter occurs in a word."""
    return str(word.count(letter))


def grade(answer: str, task: ss.Task) -> float:
    return float(answer == task.extra["expected"])  # the agent never sees `extra`


def teacher(call: ss.ScriptedCall) -> ss.Message:  # knows the form, and gets the letter wrong half of the time
    if len(call.messages) > 1:
        return ss.act("finish", answer=call.messages[-1].content)
    letter, word = call.messages[0].content.split("/")
    return ss.act("count", letter=letter if (call.seed or 0) % 2 else "x", word=word)


pairs = [(letter, word) for word in ("banana", "cherry", "lemon", "papaya", "pear") for letter in sorted(set(word))]
task = partial(ss.Task, tools=[count, ss.finish], grader=grade, limits=ss.AgentLimits(turns=3, context_tokens=256))
tasks = [task(id=f"{a}-{w}", instruction=f"{a}/{w}", extra={"expected": str(w.count(a))}) for a, w in pairs]
learning = ss.WarmStartConfig(num_epochs=6, learning_rate=4e-3, tokens_per_step=1_300)
shown = ss.demonstrations(tasks, teacher, samples=16, learning=learning)
result = ss.train(tasks, model=ss.tiny_model(tasks, teacher), demonstrations=shown, steps=10)
print({step: round(reward, 2) for step, reward in result.rewards().items()})
