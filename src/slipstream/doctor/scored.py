"""Samples beside a second scoring of them: whether their logprobs agree, and whether they were drawn as asked.

Input: replies with a score for each sampled token. Output: Checks.
Invariants: a check that the samples could not have failed is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream.doctor.checks import Check, failed, passed, skipped
from slipstream.doctor.replies import Reply, shown
from slipstream.doctor.scoring import (
    Draw,
    Suspicion,
    cut_to_min_p,
    cut_to_top_k,
    cut_to_top_p,
    distance,
    ignored_temperature,
    log_evidence,
    sampled_colder,
    shunned_repeats,
    tempered_bounds,
)
from slipstream.model.base import TokenScore
from slipstream.render.renderer import Renderer

SAMPLING = "endpoint.sampling"
NUM_TOP = 20
"""vLLM gives no more unless it is started with a higher `--max-logprobs`."""

MEAN_TOLERANCE = 0.08
MAX_TOLERANCE = 0.8
"""In nats, at temperature 1; at a lower one they are divided by it, as differences are. A sample is decoded token by
token and scored in one go, by other kernels. In bfloat16 a logit from 16 to 32 is a multiple of 0.125, and one step of
it moves a logprob by as much: a correct vLLM with SmolLM2-135M is off by 0.036 on average and 0.21 at most when it is
asked one by one, and by less in batches. Logprobs before temperature 0.7 are off by 0.3 on average, others by more."""

ALARM = 1e-6
"""The greatest probability with which a server that samples as asked is refused."""
RULED_OUT = 1e-3
"""The greatest probability with which a server that samples as suspected is said not to."""

_SUSPICIONS: tuple[Suspicion, ...] = (
    cut_to_top_k(1),
    cut_to_top_k(NUM_TOP),
    cut_to_top_p(0.8),
    cut_to_top_p(0.9),
    cut_to_top_p(0.95),
    cut_to_min_p(0.05),
    sampled_colder(0.7),
    shunned_repeats(),
)
"""At temperature 1: what generation_config.json files ask for, and what a server does that does not listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    reply: Reply
    scores: tuple[TokenScore, ...]
    """Of each sampled id."""

    def draws(self) -> Iterator[Draw]:
        for place, (index, score) in enumerate(zip(self.reply.ids, self.scores, strict=True)):
            yield Draw(id=index, score=score, before={*self.reply.ask.sent, *self.reply.ids[:place]})


def logprobs_name(temperature: float) -> str:
    return f"endpoint.logprobs@{temperature:g}"


# ---------------------------------------------------------------- logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    """One sampled token: the logprob the server gave with it, and what the scores allow."""

    scored: Scored
    place: int
    figure: float
    score: TokenScore
    size: float
    """How far the figure is from what it must be."""
    raw_size: float
    """How far the model's own logprob would be from that."""


def check_logprobs(samples: Sequence[Scored], temperature: float, renderer: Renderer) -> Check:
    """The logprobs that came with `samples`, which were taken at `temperature`."""
    name = logprobs_name(temperature)
    if any(scored.reply.logprobs is None for scored in samples):
        return skipped(name, "the server returns no logprobs with its samples")
    if temperature > 1.0:
        return skipped(name, "above temperature 1 the likeliest tokens alone do not tell what a logprob must be")
    gaps = [gap for scored in samples for gap in _gaps(scored, temperature)]
    if not gaps:
        return skipped(name, "the server sampled no tokens at all")
    total = max(math.fsum(map(math.exp, gap.score.top.values())) for gap in gaps)
    if total > 1.01:
        return failed(name, f"prompt_logprobs are not logprobs: their probabilities at one place add up to {total:.3g}")
    mean_tolerance, max_tolerance = MEAN_TOLERANCE / temperature, MAX_TOLERANCE / temperature
    mean, worst = _mean([gap.size for gap in gaps]), max(gaps, key=lambda gap: gap.size)
    figures = (
        f"over {len(gaps)} tokens the logprobs are off by {mean:.4f} on average and {worst.size:.3f} at most "
        f"(tolerance {mean_tolerance:.3f} and {max_tolerance:.2f})"
    )
    raw_mean = _mean([gap.raw_size for gap in gaps])
    if mean <= mean_tolerance and worst.size <= max_tolerance:
        if temperature == 1.0:
            return passed(name, figures)
        if raw_mean <= 2 * mean_tolerance:
            return skipped(name, f"logprobs before and after temperature are too alike to be told apart: {figures}")
        return passed(name, f"{figures}; logprobs before temperature would be off by {raw_mean:.3f}")
    raw = [abs(gap.figure - gap.score.logprob) for gap in gaps]
    if temperature != 1.0 and _mean(raw) <= MEAN_TOLERANCE and max(raw) <= MAX_TOLERANCE:
        return failed(
            name,
            f"the server returns raw logprobs: those of the model before temperature {temperature:g}, not of what it "
            f"sampled from; {figures}, and from the raw ones by {_mean(raw):.4f}. Start vLLM with "
            "--logprobs-mode processed_logprobs and then set model.logprobs=processed, or sample at temperature 1",
        )
    return failed(name, f"{figures}; {_explained(samples)}{_told(worst, renderer)}")


def _gaps(scored: Scored, temperature: float) -> Iterator[_Gap]:
    figures = scored.reply.logprobs or ()
    for place, (figure, score) in enumerate(zip(figures, scored.scores, strict=True)):
        bounds = tempered_bounds(score.logprob, list(score.top.values()), temperature)
        yield _Gap(
            scored=scored,
            place=place,
            figure=figure,
            score=score,
            size=distance(figure, bounds),
            raw_size=distance(score.logprob, bounds),
        )


def _explained(samples: Sequence[Scored]) -> str:
    """If each logprob is that of the token beside it."""
    for shift, where in ((1, "after"), (-1, "before")):
        sizes = [
            abs(figure - scored.scores[place + shift].logprob)
            for scored in samples
            for place, figure in enumerate(scored.reply.logprobs or ())
            if 0 <= place + shift < len(scored.scores)
        ]
        if sizes and _mean(sizes) <= MEAN_TOLERANCE:
            return f"each logprob is that of the token {where} it: they are shifted by one; "
    return ""


def _told(gap: _Gap, renderer: Renderer) -> str:
    reply = gap.scored.reply
    return (
        f"the worst is token {gap.place}, {shown(renderer, reply.ids[gap.place : gap.place + 1])}, of a reply to "
        f"{reply.ask.prompt!r}: {gap.figure:.3f} came with the sample, and scored again at temperature 1 it is "
        f"{gap.score.logprob:.3f}"
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ---------------------------------------------------------------- sampling


def check_sampling(
    own: Sequence[Scored], tempered: Sequence[Scored], greedy: Sequence[Scored], temperature: float, renderer: Renderer
) -> Check:
    """Whether `own` was drawn at temperature 1, `tempered` at `temperature`, `greedy` at 0, and nothing was cut off."""
    if problem := next((problem for scored in greedy if (problem := _greedy_problem(scored, renderer))), ""):
        return failed(SAMPLING, problem)
    trials = [(suspicion, own) for suspicion in _SUSPICIONS]
    if tempered and temperature < 1.0:
        trials.append((ignored_temperature(temperature), tempered))
    evidence = {
        suspicion.name: log_evidence([draw for scored in samples for draw in scored.draws()], suspicion)
        for suspicion, samples in trials
    }
    likeliest = max(evidence, key=lambda name: evidence[name][0])
    if evidence[likeliest][0] >= math.log(len(evidence) / ALARM):
        return failed(
            SAMPLING,
            f"the samples look like {likeliest}, by 10^{evidence[likeliest][0] / math.log(10):.1f} to 1 over what was "
            f"requested; a server that samples as asked is refused with a probability below {ALARM:g}. See that it "
            "obeys the sampling parameters of a request (vLLM: start it with --generation-config vllm)",
        )
    num_tokens = sum(len(scored.scores) for scored in own)
    left = [name for name, (_, high) in evidence.items() if high > math.log(RULED_OUT)]
    if left:
        return skipped(
            SAMPLING,
            f"nothing speaks against the server, but {num_tokens} tokens are too few to rule out {', '.join(left)}; "
            "with more samples they may be enough, unless the model leaves too little to chance",
        )
    return passed(
        SAMPLING,
        f"at temperature 0 the likeliest token is taken; {num_tokens} tokens rule out {', '.join(evidence)}",
    )


def _greedy_problem(scored: Scored, renderer: Renderer) -> str:
    for place, (index, score) in enumerate(zip(scored.reply.ids, scored.scores, strict=True)):
        likeliest = max(score.top, key=score.top.__getitem__)
        if score.top[likeliest] - score.logprob > MAX_TOLERANCE:
            return (
                f"at temperature 0, token {place} of the reply to {scored.reply.ask.prompt!r} is "
                f"{shown(renderer, [index])} with logprob {score.logprob:.3f}, though {shown(renderer, [likeliest])} "
                f"has {score.top[likeliest]:.3f}; the server does not obey temperature 0, or adds penalties of its own"
            )
    return ""
