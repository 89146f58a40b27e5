"""Training on another bridge: a server of the Tinker API samples and trains; tasks, tools and graders stay here.

    python examples/train_on_tinker.py FOLDER        # makes a tiny model to serve, and prints how
    python examples/train_on_tinker.py FOLDER URL    # trains it on the server at that URL

Only `settings` differs from training here. FOLDER is the model that the server has, for its tokenizer. For a model of
your own server or of the service, give its folder or its Hugging Face name, and `model.name` if the server has several.
"""

import sys
from pathlib import Path

import slipstream as ss

SERVER = """Serve it, in an environment with skyrl[tinker,jax] and uv, on Python 3.12:
JAX_PLATFORMS=cpu uv run --active --no-project -m skyrl.tinker.api --base-model {folder} --backend jax --port 8000 \\
  --backend-config '{{"max_lora_adapters": 3, "max_lora_rank": 8}}'"""


@ss.tool
def count(letter: str, word: str) -> str:
    """Count how often a letter occurs in a word."""
    return str(word.count(letter))


def grade(answer: str, task: ss.Task) -> float:
    return float(answer == task.extra["expected"])


def teacher(call: ss.ScriptedCall) -> ss.Message:
    """Gives the tiny model its words."""
    if len(call.messages) > 1:
        return ss.act("finish", answer=call.messages[-1].content)
    letter, word = call.messages[0].content.split("/")
    return ss.act("count", letter=letter, word=word)


tasks = [
    ss.Task(
        id=f"{letter}-{word}",
        instruction=f"{letter}/{word}",
        tools=[count, ss.finish],
        grader=grade,
        extra={"expected": str(word.count(letter))},
        limits=ss.AgentLimits(turns=3, context_tokens=256),
    )
    for word in ("banana", "cherry", "lemon")
    for letter in sorted(set(word))
]


def train(model: str, url: str) -> ss.TrainResult:
    settings = {
        "bridge": "tinker",
        "base_url": url,
        "learner.lora.rank": 8,
        "learner.learning_rate": 1e-3,
        "learner.num_minibatches": 1,
        "model.max_tokens": 32,
        "agent.cut_replies": "failed",  # babble that fills a reply is trained on
    }
    return ss.train(tasks, model=model, steps=2, settings={**settings, "groups": 4, "samples": 4})


if __name__ == "__main__":
    folder, *urls = sys.argv[1:] or ["tiny-model"]
    if urls:
        result = train(folder, urls[0])
        print(f"rewards {result.rewards()}; the adapter is named in {result.model_path}")
    else:
        print(SERVER.format(folder=ss.tiny_model(tasks, teacher, folder=Path(folder)).resolve()))
