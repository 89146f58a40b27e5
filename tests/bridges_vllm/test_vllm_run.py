"""`slipstream eval demo` against a real vLLM with a small cache, which is killed on the way and started again."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bridges_vllm.vllm_server import BLOCK_TOKENS, NUM_BLOCKS, Server
from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.types import EndReason, JobKey, Rollout, Span, SpanKind

COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()", "eval"]
LIMIT_S = 900
OWN_ENDS = {EndReason.FINISHED, EndReason.TURN_LIMIT}
KV_TOKENS = NUM_BLOCKS * BLOCK_TOKENS


def settings(server: Server, runs: Path, *more: str) -> list[str]:
    return [
        *("demo", "model.kind=tokens", f"model.folder={server.model}", f"model.base_url={server.base_url}"),
        *("model.logprobs=processed", "model.family_args.show_tools=false", "model.api_key_env="),
        *("model.max_tokens=200", "model.context_tokens=900", "agent.stuck.same_turns=0", "agent.stuck.alternations=0"),
        *("--runs", str(runs), *more),
    ]


def finished(arguments: Sequence[str]) -> list[Rollout]:
    """The rollouts of a run that ended well."""
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(RunStore.read(Path(json.loads(done.stdout)["run"])).rollouts())


def done_keys(runs: Path) -> set[JobKey]:
    folders = [folder for folder in runs.glob("*") if (folder / "run.db").exists()]
    try:
        return set(RunStore.read(folders[0]).done_keys()) if folders else set()
    except ConfigError:  # it is being made
        return set()


def calls_of(rollouts: Sequence[Rollout]) -> list[Span]:
    return [span for rollout in rollouts for span in rollout.spans if span.kind is SpanKind.MODEL]


def most_tokens_at_once(calls: Sequence[Span]) -> int:
    """Of the prompts that were with the server at the same time."""
    sizes = [(call, call.counts["new"] + call.counts["kept"]) for call in calls]
    return max(sum(size for other, size in sizes if other.start_s <= at.start_s < other.end_s) for at, _ in sizes)


# ---------------------------------------------------------------- load


def test_adaptive_goes_by_the_servers_cache(server: Server, tmp_path: Path) -> None:
    shares, preempted, most = {}, {}, {}
    for seed, pacing in enumerate((("batch",), ("adaptive",))):
        names = ("prefix_cache_hits", "prefix_cache_queries", "num_preemptions")
        before = [server.count(name) for name in names]
        more = (f"dispatch.policy={pacing[0]}", *pacing[1:], "tasks.num=96", f"seed={seed}")
        rollouts = finished(settings(server, tmp_path / pacing[0], *more))
        hits, queries, preemptions = (server.count(name) - old for name, old in zip(names, before, strict=True))
        assert len(rollouts) == 96 and {rollout.ending.reason for rollout in rollouts} <= OWN_ENDS
        shares[pacing[0]], preempted[pacing[0]] = hits / queries, preemptions
        most[pacing[0]] = most_tokens_at_once(calls_of(rollouts))
    print(f"of the prompts cached: {shares}; preempted: {preempted}; most tokens at once: {most} of {KV_TOKENS}")
    assert most["adaptive"] <= KV_TOKENS, "the room is that of the server's cache"
    assert most["adaptive"] < most["batch"]
    assert preempted["adaptive"] <= preempted["batch"]
    assert shares["adaptive"] > 1.5 * shares["batch"], "contexts stay in the cache from turn to turn"


def test_an_evaluation_in_chat_mode(server: Server, tmp_path: Path) -> None:
    more = ("model.kind=chat", "tasks.num=8", "dispatch.slots=4")
    rollouts = finished([*settings(server, tmp_path, *more)])
    assert len(rollouts) == 8 and {rollout.ending.reason for rollout in rollouts} <= OWN_ENDS
    assert all(turn.messages[-1].calls and turn.sampled is None for rollout in rollouts for turn in rollout.turns)


# ---------------------------------------------------------------- death


def test_a_run_outlasts_a_restart_of_its_server(server: Server, tmp_path: Path) -> None:
    more = ("tasks.num=24", "samples=2", "dispatch.slots=4", "model.max_retries=60")
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        running = subprocess.Popen(
            [*COMMAND, *settings(server, tmp_path / "runs", *more)], stderr=stderr, stdout=stderr
        )
        wait_for_some(running, tmp_path / "runs", errors)
        server.kill()
        server.start()
        assert running.wait(timeout=LIMIT_S) == 0, errors.read_text()
    (folder,) = (tmp_path / "runs").iterdir()
    rollouts = list(RunStore.read(folder).rollouts())
    assert len({rollout.job.key for rollout in rollouts}) == 48
    assert {rollout.ending.reason for rollout in rollouts} <= OWN_ENDS, "nobody was failed for the server's death"
    assert all(rollout.verdict is not None for rollout in rollouts)
    assert max(call.end_s - call.start_s for call in calls_of(rollouts)) > 5, "somebody waited for it"


def test_a_run_whose_server_stays_dead_ends_in_a_sentence_and_goes_on_later(server: Server, tmp_path: Path) -> None:
    more = ("tasks.num=24", "samples=2", "dispatch.slots=4", "model.max_retries=2")
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        running = subprocess.Popen(
            [*COMMAND, *settings(server, tmp_path / "runs", *more)], stderr=stderr, stdout=stderr
        )
        wait_for_some(running, tmp_path / "runs", errors)
        server.kill()
        try:
            assert running.wait(timeout=LIMIT_S) not in (0, None)
            said = " ".join(errors.read_text().split())
            assert "the model's server is gone" in said and "restart it, then resume the run" in said, said
            again = subprocess.run(
                [*COMMAND, "--resume", "latest", "--runs", str(tmp_path / "runs")],
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            assert again.returncode != 0 and "start the server, or correct base_url" in " ".join(again.stderr.split())
        finally:
            server.start()
    (folder,) = (tmp_path / "runs").iterdir()
    before = {rollout.job.key: rollout for rollout in RunStore.read(folder).rollouts()}
    assert 0 < len(before) < 48 and {rollout.ending.reason for rollout in before.values()} <= OWN_ENDS
    rollouts = finished(["--resume", "latest", "--runs", str(tmp_path / "runs")])
    assert len({rollout.job.key for rollout in rollouts}) == len(rollouts) == 48
    assert {rollout.ending.reason for rollout in rollouts} <= OWN_ENDS and all(rollout.verdict for rollout in rollouts)
    assert all(before.get(rollout.job.key, rollout) == rollout for rollout in rollouts), "what was done stays as it was"


def wait_for_some(running: subprocess.Popen[bytes], runs: Path, errors: Path) -> None:
    until_s = time.monotonic() + LIMIT_S
    while len(done_keys(runs)) < 4:
        assert running.poll() is None and time.monotonic() < until_s, errors.read_text()
        time.sleep(0.1)
