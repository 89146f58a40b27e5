"""A model that walks about: made from scratch, it wanders through the demo's folders and sometimes stops.

Input: a folder. Output: the quickstart's model folder with other weights, and a chat template beside it.
Invariants: a reply is some words, then one well-formed tool call. How many words, which folder and whether to finish
is drawn by chance, so temperature, logprobs and seeds matter; and each probability leans a little on all that stands
before, so a wrong cache would show.

The state of the walk is the last token, which has a dimension of its own. The attention adds a little of the context,
and the head turns the state into the logits of the tokens that may follow.
"""

import json
import math
from pathlib import Path

import numpy

from slipstream.hub.origin import Dtype
from slipstream.hub.tensors import Tensor, write_safetensors
from slipstream.hub.tiny import END_OF_MESSAGE, TINY_SHAPE, train_tokenizer
from slipstream.model.scripted import act
from slipstream.recipes.demo.tasks import FOLDERS
from slipstream.recipes.quickstart.model import PIECES, make_model, texts
from slipstream.render.formats.chatml import reply_text

SURE = 16.0
"""The logit of a token that alone may follow; all others have none."""
WORDS = 0.97
"""The chance that another word follows a word: a reply has about a dozen."""
FINISH = 0.1
"""Of the tool calls."""
CONTEXT = 0.03

TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.tool_calls %}{% for call in message.tool_calls -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def make_walker(folder: Path) -> Path:
    make_model(folder, seed=0)
    tokenizer = train_tokenizer(texts(), pieces=PIECES)
    config = json.loads((folder / "config.json").read_text())
    num_tokens = config["vocab_size"]
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    (folder / "template.jinja").write_text(TEMPLATE)
    write_safetensors(
        folder / "model.safetensors",
        _tensors(num_tokens, _follow(tokenizer.encode, tokenizer.token_to_id(END_OF_MESSAGE))),
        Dtype.FLOAT32,
        on_bytes=lambda num: None,
    )
    return folder


def _follow(encode, end: int) -> dict[int, dict[int, float]]:  # type: ignore[no-untyped-def]  # no types there
    """From a token to those that may follow, with their chances."""
    (opening,) = encode("assistant\n").ids
    (word,) = encode(" out").ids
    (finish,) = encode(reply_text(act("finish"))).ids
    walks = [encode(reply_text(act("bash", command=f"cat {folder}/note"))).ids for folder in FOLDERS]
    bash, cat, _, note = walks[0]
    return {
        opening: {word: 1.0},
        word: {word: WORDS, bash: (1 - WORDS) * (1 - FINISH), finish: (1 - WORDS) * FINISH},
        bash: {cat: 1.0},
        cat: {walk[2]: 1 / len(walks) for walk in walks},
        **{walk[2]: {note: 1.0} for walk in walks},
        note: {end: 1.0},
        finish: {end: 1.0},
    }


def _tensors(num_tokens: int, follow: dict[int, dict[int, float]]) -> list[Tensor]:
    chance = numpy.random.default_rng(0)
    hidden, inner = TINY_SHAPE.hidden, TINY_SHAPE.inner
    queries, keys = TINY_SHAPE.heads * TINY_SHAPE.head, TINY_SHAPE.kv_heads * TINY_SHAPE.head
    state = {token: index for index, token in enumerate(follow)}
    embedding = numpy.zeros((num_tokens, hidden))
    head = numpy.zeros((num_tokens, hidden))
    for token in range(num_tokens):
        embedding[token, state.get(token, hidden - 1)] = 1.0
    embedding[:, len(state) : hidden - 1] = chance.normal(0.0, 0.02, (num_tokens, hidden - 1 - len(state)))
    for token, chances in follow.items():
        for after, probability in chances.items():
            head[after, state[token]] = (SURE + math.log(probability)) / math.sqrt(hidden)
    arrays = {"model.embed_tokens": embedding, "lm_head": head, "model.norm": numpy.ones(hidden)}
    for index in range(TINY_SHAPE.layers):
        layer = f"model.layers.{index}"
        arrays |= {f"{layer}.{name}": numpy.ones(hidden) for name in ("input_layernorm", "post_attention_layernorm")}
        arrays |= {f"{layer}.self_attn.{name}": numpy.ones(TINY_SHAPE.head) for name in ("q_norm", "k_norm")}
        for name, num_out, num_in in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            scale = CONTEXT if name.endswith(("o_proj", "down_proj")) else 1.0
            arrays[f"{layer}.{name}"] = chance.normal(0.0, scale / math.sqrt(num_in), (num_out, num_in))
    return [_tensor(f"{name}.weight", values.astype(numpy.float32)) for name, values in arrays.items()]


def _tensor(name: str, values: "numpy.typing.NDArray[numpy.float32]") -> Tensor:
    return Tensor(name=name, shape=values.shape, read=lambda: values)
