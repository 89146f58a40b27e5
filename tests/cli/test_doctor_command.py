"""`slipstream doctor` and `slipstream bench`, as a user types them."""

import json
from pathlib import Path

from bpe_surrogates import bpe
from cli_stage import refused, slipstream

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def model(path: Path, template: str) -> Path:
    path.mkdir()
    bpe("chatml").save(path / "tokenizer.json")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return path


def test_a_good_folder_is_certified_and_what_was_not_checked_is_listed(tmp_path: Path) -> None:
    model(tmp_path / "model", TEMPLATE)
    ended = slipstream("doctor", "--model", "model", "--json", cwd=tmp_path)
    told = ended.json
    assert (ended.code, told["certified"], told["family"]) == (0, True, "chatml")
    assert {"name": "endpoint", "reason": "none was named: give --base-url"} in told["skipped"]
    assert {check["status"] for check in told["checks"]} == {"passed"}


def test_a_broken_template_is_refused_for_people_and_for_programs(tmp_path: Path) -> None:
    model(tmp_path / "model", TEMPLATE.replace("message['role'] + '\n'", "message['role'] + ' '"))
    ended = slipstream("doctor", "--model", "model", "--family", "chatml", cwd=tmp_path)
    assert ended.code == 1
    assert "refused: model as chatml" in ended.out
    assert "FAILED   template: plain" in ended.out
    rows = [line for line in ended.out.splitlines() if line.startswith(("passed", "FAILED", "skipped"))]
    assert {line.split()[0] for line in rows} == {"passed", "FAILED", "skipped"}
    assert {line[:9].rstrip() == line.split()[0] and line[9] != " " and line[54] == " " for line in rows} == {True}
    assert "expected ' " in ended.out
    assert not slipstream("doctor", "--model", "model", "--family", "chatml", "--json", cwd=tmp_path).json["certified"]
    assert slipstream("doctor", "--model", "model", "--json", cwd=tmp_path).json["family"] == "template"


def test_a_family_can_be_tried_without_a_model(tmp_path: Path) -> None:
    ended = slipstream("doctor", "--family", "gpt-oss", "--json", cwd=tmp_path)
    assert ended.code == 0
    assert "vocabulary" in {one["name"] for one in ended.json["skipped"]}


def test_what_cannot_be_examined_is_one_sentence(tmp_path: Path) -> None:
    assert "--model FOLDER" in refused("doctor", cwd=tmp_path)
    assert 'did you mean "smollm2"' in refused("doctor", "--model", "smolm2", cwd=tmp_path)
    message = refused("doctor", "--family", "qwen4", cwd=tmp_path)
    assert message.startswith('there is no family "qwen4"')
    offered = message.partition("use one of ")[2].split(", ")
    assert {"chatml", "qwen3", "gpt-oss"} <= set(offered)
    assert not {"auto", "default", "custom"} & set(offered)
    assert offered[-1] == "or module:Class of your own"


def test_the_nearest_family_may_be_our_own(tmp_path: Path) -> None:
    assert 'did you mean "chatml"?' in refused("doctor", "--family", "chatlm", cwd=tmp_path)


def test_an_endpoint_that_is_down_is_refused_and_nothing_hangs(tmp_path: Path) -> None:
    model(tmp_path / "model", TEMPLATE)
    ended = slipstream("doctor", "--model", "model", "--base-url", "http://127.0.0.1:9/v1", "--json", cwd=tmp_path)
    assert ended.code == 1
    assert [check["name"] for check in ended.json["checks"] if check["status"] == "failed"] == ["endpoint.reachable"]


def test_a_benchmark_prints_json_or_a_line_a_figure(tmp_path: Path) -> None:
    small = ("--turns", "20", "--rollouts", "16", "--tokens", "500")
    figures = slipstream("bench", "datapath", *small, "--json", cwd=tmp_path).json
    assert figures["turns"] == 20
    assert {"merge_s", "rss_mb"} <= figures.keys()
    lines = slipstream("bench", "datapath", *small, cwd=tmp_path).out.splitlines()
    assert [line.split()[0] for line in lines] == list(figures)
