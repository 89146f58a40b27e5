"""A Tinker server in memory, behind the bridge's own seam: its weights are a number that every step adds 1 to."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.bridges.tinker.completer import TinkerCompleter
from slipstream.bridges.tinker.data import Datum
from slipstream.bridges.tinker.learner import TinkerLearner
from slipstream.bridges.tinker.protocols import AdamStep, Completion, Loss, PassResult
from slipstream.engine.training.config import LearnerConfig
from slipstream.errors import BridgeError, ModelError
from slipstream.types import Batch, JobKey, Row, Sample, SampleParams, StopReason, token_ids

PROBE = [1, 2, 3]
LOGPROB = -1.5


@dataclass
class FakeServer:
    where: str = "the server of this test"
    served: Mapping[str, int | None] = field(default_factory=lambda: {"base": None})
    log: list[str] = field(default_factory=list)
    """What arrived and what was waited for, in order."""
    states: dict[str, int] = field(default_factory=dict)
    passes: list[tuple[list[Datum], Loss]] = field(default_factory=list)
    steps: list[AdamStep] = field(default_factory=list)
    has_logprobs: bool = True
    off_by: float = 0.0
    """How far what is scored is from what was sampled."""
    refused: str = ""
    """A request whose answer is an error: pass, step, save, sampler or forward."""
    encode: Callable[[str], Sequence[int]] | None = None
    sample_s: float = 0.0
    has_lost_it: bool = False
    """Nothing can be sampled any more."""
    closed: bool = False

    def check(self, request: str) -> None:
        if request == self.refused:
            raise BridgeError(f"{self.where} refuses a {request}")

    async def models(self) -> Mapping[str, int | None]:
        return self.served

    async def train(
        self, base_model: str, *, rank: int, seed: int, state: str | None = None, with_optimizer: bool = True
    ) -> "FakeTrainee":
        self.log.append(f"train {state or 'anew'}{'' if with_optimizer else ' without optimiser'}")
        if state is not None and state not in self.states:
            raise BridgeError(f"{self.where} has no {state}")
        return FakeTrainee(self, 0 if state is None else self.states[state])

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


class FakeTrainee:
    def __init__(self, server: FakeServer, weights: int) -> None:
        self.server = server
        self.weights = weights

    async def forward(self, datums: Sequence[Datum], loss: Loss) -> PassResult:
        self.server.check("forward")
        return self._scored(datums)

    async def send_pass(self, datums: Sequence[Datum], loss: Loss) -> Awaitable[PassResult]:
        self.server.log.append("sent pass")
        self.server.passes.append((list(datums), loss))

        async def result() -> PassResult:
            self.server.log.append("waits for pass")
            self.server.check("pass")
            return self._scored(datums)

        return result()

    async def send_step(self, step: AdamStep) -> Awaitable[Mapping[str, float]]:
        self.server.log.append("sent step")
        self.server.steps.append(step)
        self.weights += 1

        async def result() -> Mapping[str, float]:
            self.server.log.append("waits for step")
            self.server.check("step")
            return {"some/grad_norm": 0.25}

        return result()

    def _scored(self, datums: Sequence[Datum]) -> PassResult:
        return PassResult(logprobs=[array("f", [LOGPROB + self.server.off_by] * len(each.inputs)) for each in datums])

    async def save_state(self, name: str) -> str:
        self.server.check("save")
        self.server.states[name] = self.weights
        return name

    async def sampler(self) -> "FakeSampler":
        self.server.check("sampler")
        return FakeSampler(self.server, self.weights)

    async def save_for_sampling(self, name: str) -> str:
        return f"tinker://{name}"

    async def encoder(self) -> Callable[[str], Sequence[int]] | None:
        return self.server.encode

    async def unload(self) -> None:
        self.server.log.append("unload")


@dataclass
class FakeSampler:
    """Says its weights as a token, then ends."""

    server: FakeServer
    weights: int
    seen: list[SampleParams] = field(default_factory=list)

    async def sample(self, prompt_ids: Sequence[int], params: SampleParams) -> Completion:
        self.seen.append(params)
        if self.server.has_lost_it or len(prompt_ids) > 20:
            raise ModelError("no such adapter")
        if self.server.sample_s:
            await asyncio.sleep(self.server.sample_s)
        self.server.log.append(f"sampled by {self.weights}")
        logprobs = [LOGPROB, LOGPROB] if self.server.has_logprobs else None
        return Completion(ids=[self.weights, 9], logprobs=logprobs, stop=StopReason.STOP)


def learner_on(
    server: FakeServer,
    config: LearnerConfig | None = None,
    *,
    encode: Callable[[str], Sequence[int]] | None = None,
    overlap: bool = False,
    context_tokens: int | None = None,
) -> TinkerLearner:
    completer = TinkerCompleter(context_tokens=context_tokens, timeout_s=60.0, overlap=overlap)
    return TinkerLearner(
        server, "base", config or LearnerConfig(), completer=completer, seed=0, probe_ids=PROBE, encode=encode
    )


def row(*, sample: int = 0, advantage: float = 0.5, in_loss: bool = True, num: int = 2) -> Row:
    """Two tokens given, then `num` sampled."""
    ids = [1, 2, *range(10, 10 + num)]
    return Row(
        sample=Sample(
            key=JobKey(phase="train", step=0, task_id="t", sample=sample),
            branch=0,
            ids=token_ids(ids),
            mask=array("b", [0, 0, *[1] * num]),
            logprobs=array("f", [0.0, 0.0, *[LOGPROB] * num]),
            versions=array("i", [-1, -1, *[0] * num]),
            turns=(0,),
        ),
        advantage=advantage,
        in_loss=in_loss,
    )


def batch(*rows: Row) -> Batch:
    return Batch(rows=rows)
