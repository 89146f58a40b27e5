"""Every family that users train, over bytes and over a small BPE that carries its special tokens."""

import json
from pathlib import Path

import pytest
import tokenizers
from bpe_surrogates import bpe
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from slipstream.errors import ConfigError
from slipstream.render.base import Tokenizer, Traits
from slipstream.render.families import FAMILY_TOKENS, TRAITS, guess_family, surrogate
from slipstream.render.formats.own_templates import OWN_TEMPLATES
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import ByteTokenizer, FileTokenizer
from slipstream.types import CallProblem, Json, Message, Role, TokenIds, ToolCall, ToolSpec, token_ids

FAMILIES = sorted(FAMILY_TOKENS)
TOOLS = (
    ToolSpec(
        name="bash",
        description="Run.",
        parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
)
USER = Message(role=Role.USER, content="Go.")


def tokenizers_of(family: str) -> list[Tokenizer]:
    return [surrogate(family), bpe(family)]


def bash(command: str) -> Message:
    call = ToolCall(id="functions.bash:0", name="bash", arguments={"command": command})
    return Message(role=Role.ASSISTANT, calls=(call,))


def answer(text: str) -> Message:
    return Message(role=Role.TOOL, content=text, call_id="functions.bash:0", name="bash")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_read_as_it_was_written(family: str) -> None:
    for tokenizer in tokenizers_of(family):
        renderer = Renderer(family, tokenizer)
        prompt = renderer.render([USER], TOOLS)
        heard = renderer.parse(renderer.encode_reply(bash("ls -la é")), prompt, TOOLS, call_prefix="c")
        assert [(call.name, call.arguments, call.problem) for call in heard.calls] == [
            ("bash", {"command": "ls -la é"}, None)
        ]
        assert all(call.id for call in heard.calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_of_the_prompt_is_enough_to_go_on_from(family: str) -> None:
    """What `extend` and `parse` are given is the last turn's part, not the whole prompt: total work stays linear."""
    for tokenizer in tokenizers_of(family):
        renderer = Renderer(family, tokenizer)
        whole = tail = renderer.render([Message(role=Role.SYSTEM, content="Work."), USER], TOOLS)
        for number in range(3):
            said = renderer.encode_reply(bash(f"ls {number}"))
            by_tail = renderer.extend(tail, said, [answer("a\nb")], TOOLS)
            by_whole = renderer.extend(whole, said, [answer("a\nb")], TOOLS)
            assert by_tail is not None and by_tail == by_whole
            whole, tail = whole + said + by_tail.added, by_tail.added
            assert renderer.parse(said, tail, TOOLS, call_prefix="c") == renderer.parse(
                said, whole, TOOLS, call_prefix="c"
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hint_inside_the_tool_response_never_forks(family: str) -> None:
    renderer = Renderer(family, surrogate(family))
    tail = renderer.render([USER], TOOLS)
    hinted = answer("no such file\n\nHint: look with find first.")
    extension = renderer.extend(tail, renderer.encode_reply(bash("cat x")), [hinted], TOOLS)
    assert extension is not None and extension.num_dropped == 0
    assert "Hint: look with find first." in renderer.decode(extension.added)


@pytest.mark.parametrize("family", [name for name in FAMILIES if TRAITS.get(name, Traits()).thinking])
def test_thinking_stays_unless_the_template_is_asked_for(family: str) -> None:
    thought = Message(role=Role.ASSISTANT, content="5", thinking="Two and three.")
    history = [USER, thought, Message(role=Role.USER, content="Times two?")]
    keeps, follows = (Renderer(family, surrogate(family), thinking=how) for how in ("keep", "template"))
    assert "Two and three." in keeps.decode(keeps.render(history, ()))
    extension = keeps.extend(keeps.render([USER], ()), keeps.encode_reply(thought), history[2:], ())
    assert extension is not None
    if family in ("chatml", "qwen2.5", "qwen3.8"):  # whose own templates keep it
        return
    assert "Two and three." not in follows.decode(follows.render(history, ()))
    assert follows.extend(follows.render([USER], ()), follows.encode_reply(thought), history[2:], ()) is None


def thinking_families() -> list[tuple[str, dict[str, Json]]]:
    """Those with marks for thinking, with all that `enable_thinking` may be; some prompts end with the opening mark."""
    found: list[tuple[str, dict[str, Json]]] = []
    for family in FAMILIES:
        if "<think>" in FAMILY_TOKENS[family] or family == "chatml":
            found.append((family, {}))
            for switch in (False, True):
                try:
                    Renderer(family, surrogate(family), args={"enable_thinking": switch})
                except ConfigError:
                    continue
                found.append((family, {"enable_thinking": switch}))
    return found


@pytest.mark.parametrize(("family", "args"), thinking_families())
def test_a_call_inside_thinking_is_never_one(family: str, args: dict[str, Json]) -> None:
    for tokenizer in tokenizers_of(family):
        renderer = Renderer(family, tokenizer, args=args)

        def written(command: str, renderer: Renderer = renderer) -> str:
            """A call without its end, and so that the marks of thinking in it are sampled as such."""
            spelt = renderer.decode(renderer.encode_reply(bash("COMMAND"))[:-1])
            return spelt.rpartition("</think>")[2].replace("COMMAND", command)

        def commands(text: str, tail: TokenIds, renderer: Renderer = renderer) -> list[Json]:
            sampled = renderer.encode_text(text) + token_ids(renderer.stop_ids[:1])
            heard = renderer.parse(sampled, tail, TOOLS, call_prefix="c")
            assert heard.thinking.startswith("So") or "So" not in text or not args.get("enable_thinking", True)
            return [call.arguments["command"] for call in heard.calls]

        first = renderer.render([USER], TOOLS)
        said = renderer.encode_reply(bash("ls"))
        extended = renderer.extend(first, said, [answer("<think> a")], TOOLS)
        cut = renderer.extend(first, renderer.encode_text("<think>So"), [USER], TOOLS)
        assert extended is not None and cut is not None
        for tail in (first, extended.added, first + said + extended.added, cut.added):
            is_open = renderer.decode(tail).rstrip().endswith("<think>")
            begun = "So" if is_open else "<think>So"
            assert commands(f"{begun} {written('no')}", tail) == []
            assert commands(f"{begun} {written('no')} on", tail) == []
            assert commands(f"{begun} {written('no')} on</think>{written('yes')}", tail) == ["yes"]
            assert commands(f"{begun}</think>{written('yes')}", tail) == ["yes"]
            assert commands(f"{begun}</think>{written('echo <think>')}", tail) == ["echo <think>"]
            assert commands(written("yes"), tail) == ([] if is_open else ["yes"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_special_token_in_a_tools_output_is_spelt_out(family: str) -> None:
    for tokenizer in tokenizers_of(family):
        renderer = Renderer(family, tokenizer)
        spoken = "".join(FAMILY_TOKENS[family])
        tail, said = renderer.render([USER], TOOLS), renderer.encode_reply(bash("cat log"))
        plain, spelt = (renderer.extend(tail, said, [answer(text)], TOOLS) for text in ("x", spoken))
        assert plain is not None and spelt is not None
        special = {renderer.encode_text(token)[0] for token in FAMILY_TOKENS[family]}
        assert sum(index in special for index in spelt.added) == sum(index in special for index in plain.added)
        assert spoken in renderer.decode(spelt.added)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nothing_a_model_samples_makes_parsing_fail(family: str, data: st.DataObject) -> None:
    renderer = Renderer(family, surrogate(family))
    ids = st.integers(0, 255) | st.integers(256, 255 + len(FAMILY_TOKENS[family]))
    sampled = token_ids(data.draw(st.lists(ids, max_size=40)))
    prompt = renderer.render([USER], TOOLS)
    heard = renderer.parse(sampled, prompt, TOOLS, call_prefix="c")
    assert heard.role is Role.ASSISTANT
    extension = renderer.extend(prompt, sampled, [Message(role=Role.USER, content="Go on.")], TOOLS)
    whole = renderer.render([USER, heard, Message(role=Role.USER, content="Go on.")], TOOLS)
    assert len(whole) > len(prompt)
    if extension is not None:
        assert 0 <= extension.num_dropped <= len(sampled)


def test_the_words_of_python_are_read_where_a_template_writes_them() -> None:
    """Qwen3.5's template writes True for true, so its models do, and the library calls that malformed."""
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"deep": {"type": "boolean"}, "text": {"type": "string"}},
    }
    tools = (ToolSpec(name="look", description="", parameters=schema),)
    renderer = Renderer("qwen3.5", surrogate("qwen3.5"))
    call = ToolCall(id="c0", name="look", arguments={"deep": True, "text": "True"})
    said = renderer.encode_reply(Message(role=Role.ASSISTANT, calls=(call,)))
    assert "\nTrue\n" in renderer.decode(said)
    (heard,) = renderer.parse(said, renderer.render([USER], tools), tools, call_prefix="c").calls
    assert (heard.arguments, heard.problem) == ({"deep": True, "text": "True"}, None)


def test_a_family_that_cannot_say_something_says_so() -> None:
    with pytest.raises(ConfigError, match="the family 'llama-3' cannot represent"):
        Renderer("llama-3", surrogate("llama-3")).encode_reply(
            Message(role=Role.ASSISTANT, content="5", thinking="Two and three.")
        )


def test_the_templates_own_arguments_are_checked() -> None:
    off = Renderer("qwen3.5", surrogate("qwen3.5"), args={"enable_thinking": False})
    assert off.decode(off.render([USER], ())).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(ConfigError, match="'qwen3' does not take enable_thnking"):
        Renderer("qwen3", surrogate("qwen3"), args={"enable_thnking": False})
    with pytest.raises(ConfigError, match="'chatml' does not take"):
        Renderer("chatml", surrogate("chatml"), args={"nonsense": 1})


def test_a_family_is_guessed_by_type_and_else_by_tokens() -> None:
    assert guess_family(surrogate("qwen3"), "qwen3_moe") == "qwen3"
    assert guess_family(surrogate("chatml"), "llama") == "chatml"
    assert guess_family(surrogate("llama-3"), "llama") == "llama-3"
    types = {"qwen2": "qwen2.5", "mistral": "mistral", "gemma3": "gemma3", "gemma3_text": "gemma3", "phi3": "phi-3"}
    assert {name: guess_family(surrogate(family), name) for name, family in types.items()} == types
    with pytest.raises(ConfigError, match=r"set model\.family to one of"):
        guess_family(ByteTokenizer(["<x>"]), "llama")


@pytest.mark.parametrize(
    ("model_type", "family"),
    [
        ("qwen3_moe", "qwen3-coder"),
        ("deepseek_v3", "deepseek-r1"),
        ("mistral", "mistral"),
        ("gemma3_text", "gemma3"),
        ("phi3", "phi-3"),
        ("phi3", "phi-4-mini"),
    ],
)
def test_of_families_that_share_a_type_the_folders_template_tells_which(
    model_type: str, family: str, tmp_path: Path
) -> None:
    bpe(family).save(tmp_path / "tokenizer.json")
    own = OWN_TEMPLATES[family]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": own.source, **own.special_tokens}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert open_renderer(tmp_path).family == family


def test_a_family_of_ones_own_is_a_class_that_takes_the_tokenizer(tmp_path: Path) -> None:
    written = tmp_path / "mine.py"
    written.write_text("from slipstream.render.formats.chatml import ChatMLFormat as Mine\nnumber = 3\n")
    assert Renderer(f"{written}:Mine", surrogate("chatml")).render([USER], ())
    with pytest.raises(ConfigError, match="is not a class"):
        Renderer(f"{written}:number", surrogate("chatml"))


def test_runs_of_blanks_in_a_vocabulary_are_plain_text(tmp_path: Path) -> None:
    """Gemma adds them as tokens: shielding them would spell every empty line in another way than the model knows."""
    bpe("gemma3").save(tmp_path / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\u2581\u2581", normalized=False)])
    backend.save(str(tmp_path / "tokenizer.json"))
    renderer = Renderer("gemma3", FileTokenizer.load(tmp_path))
    ids = renderer.render([Message(role=Role.USER, content="a\n\nb")], ())
    assert backend.token_to_id("\n\n") in ids
    assert "\n\n" not in renderer.special_tokens


def test_glm_45_puts_a_newline_between_calls_that_follow_text() -> None:
    """The renderers library leaves it out there, which the models' own template does not."""
    calls = tuple(ToolCall(id=f"c{n}", name="bash", arguments={"command": str(n)}) for n in range(2))
    renderer = Renderer("glm-4.5", surrogate("glm-4.5"))
    said = renderer.decode(renderer.encode_reply(Message(role=Role.ASSISTANT, content="I look.", calls=calls)))
    assert (
        said
        == "\n<think></think>\nI look."
        + "".join(
            f"\n<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>{n}</arg_value>\n</tool_call>" for n in range(2)
        )
        + "<|observation|>"
    )


@pytest.mark.parametrize("separator", ["\n", "; ", ", ", " "])
def test_several_calls_where_a_reply_has_one_are_told_to_the_model(separator: str) -> None:
    renderer = Renderer("llama-3", surrogate("llama-3"))
    prompt = renderer.render([USER], TOOLS)
    written = separator.join(f'{{"name": "bash", "parameters": {{"command": "{name}"}}}}' for name in ("ls", "pwd"))
    heard = renderer.parse(renderer.encode_text(f"{written}<|eot_id|>"), prompt, TOOLS, call_prefix="c")
    assert [(call.problem, call.raw) for call in heard.calls] == [(CallProblem.SEVERAL, written)]
    whole = renderer.decode(renderer.render([USER, heard, answer("one at a time")], TOOLS))
    assert written in whole
    reply = Message(role=Role.ASSISTANT, calls=(bash("ls").calls[0], bash("pwd").calls[0]))
    for how in ("keep", "template"):
        with pytest.raises(ConfigError, match="only supports a single tool call"):
            Renderer("llama-3", surrogate("llama-3"), thinking=how).render([USER, reply, answer("1")], TOOLS)
