"""What a server's scores say about its own samples: pure mathematics.

Input: per sampled token its score, which is its logprob at temperature 1 with the likeliest tokens at that place.
Output: where its logprob at another temperature must lie, and how strongly the samples speak for a server that shapes
what it samples from.
Invariants: `tempered_bounds` encloses the exact softmax, whatever the unseen tokens are. Evidence for a suspicion is
above x with a probability of at most 1/x if the server samples as asked, and below 1/x with a probability of at most
1/x if it samples as suspected, whatever the model, the prompts and the number of tokens are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from slipstream.model.base import TokenScore

LEAK = 0.02
"""The share of tokens that a suspected cut is thought to let through. Scores and samples come from other kernels, so
a token at the edge of the cut may seem to lie outside; without a leak one such token would clear the server."""

REPEAT_ODDS = 0.5
"""By what the odds of a token that was there before are multiplied under a suspected penalty. A repetition penalty of
1.1 does more to any logit above 8."""


# ---------------------------------------------------------------- logprobs at another temperature


Bounds: TypeAlias = tuple[float, float]
"""The least and the greatest that something can be."""


def tempered_bounds(logprob: float, top: Sequence[float], temperature: float) -> Bounds:
    """The bounds of a token's logprob at `temperature`, above 0 and up to 1.

    `logprob` is the token's at temperature 1, `top` are those of the likeliest tokens, its own included if it is one.
    With p for probabilities at temperature 1 and a = 1/T, the logprob at T is a log p - log Z, where Z is the sum of
    p^a over the vocabulary. Of that sum the known tokens give a part exactly. An unseen token has p <= m, the least of
    `top`, so p^a = p p^(a-1) <= p m^(a-1) for a >= 1; and all unseen tokens together have the mass that is left. So

        known <= Z <= known + left m^(a-1)
    """
    if not 0.0 < temperature <= 1.0:
        raise ValueError(f"temperature {temperature:g}: the bounds hold above 0 and up to 1")
    if temperature == 1.0:
        return logprob, logprob
    power = 1.0 / temperature
    least = min(top)
    known = [*top, logprob] if logprob < least else list(top)
    left = max(0.0, 1.0 - math.fsum(map(math.exp, known)))
    # Relative to the likeliest token, so that no power of a small probability is lost to underflow.
    peak = power * max(known)
    seen = math.fsum(math.exp(power * value - peak) for value in known)
    unseen = left * math.exp((power - 1.0) * least - peak)
    return power * logprob - peak - math.log(seen + unseen), power * logprob - peak - math.log(seen)


def distance(figure: float, bounds: Bounds) -> float:
    """How far `figure` is outside of `bounds`; 0 inside."""
    low, high = bounds
    return max(0.0, low - figure, figure - high)


# ---------------------------------------------------------------- what was sampled from


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One sampled token."""

    id: int
    score: TokenScore
    before: Collection[int]
    """Ids that stand before it: at least those of the likeliest tokens that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A way to sample from something else than was requested."""

    name: str
    ratio: Callable[[Draw], Bounds]
    """Of the draw's probability under the suspicion to that under what was requested."""


def log_evidence(draws: Sequence[Draw], suspicion: Suspicion) -> Bounds:
    """The log of how much likelier all draws are under the suspicion.

    The product of the true ratios is a martingale of mean 1 if the server samples as asked, and its inverse is if it
    samples as suspected: Markov's inequality is the promise above, read off the lower bound and the upper.
    """
    ratios = [suspicion.ratio(draw) for draw in draws]
    return math.fsum(math.log(low) for low, _ in ratios), math.fsum(math.log(high) for _, high in ratios)


def cut_to_top_k(top_k: int) -> Suspicion:
    def num_kept(score: TokenScore) -> int | None:
        return top_k if len(score.top) >= top_k else None

    return Suspicion(name="greedy sampling" if top_k == 1 else f"top_k={top_k}", ratio=_cut(num_kept))


def cut_to_top_p(top_p: float) -> Suspicion:
    def num_kept(score: TokenScore) -> int | None:
        masses = accumulate(math.exp(logprob) for logprob in score.top.values())
        return next((place for place, mass in enumerate(masses, start=1) if mass >= top_p), None)

    return Suspicion(name=f"top_p={top_p:g}", ratio=_cut(num_kept))


def cut_to_min_p(min_p: float) -> Suspicion:
    def num_kept(score: TokenScore) -> int | None:
        logprobs = list(score.top.values())
        number = sum(logprob >= logprobs[0] + math.log(min_p) for logprob in logprobs)
        return number if number < len(logprobs) else None

    return Suspicion(name=f"min_p={min_p:g}", ratio=_cut(num_kept))


def sampled_colder(temperature: float) -> Suspicion:
    """At `temperature`, where 1 was requested."""

    def ratio(draw: Draw) -> Bounds:
        low, high = tempered_bounds(draw.score.logprob, list(draw.score.top.values()), temperature)
        return math.exp(low - draw.score.logprob), math.exp(high - draw.score.logprob)

    return Suspicion(name=f"temperature={temperature:g}", ratio=ratio)


def ignored_temperature(temperature: float) -> Suspicion:
    """At 1, where `temperature` was requested."""

    def ratio(draw: Draw) -> Bounds:
        low, high = tempered_bounds(draw.score.logprob, list(draw.score.top.values()), temperature)
        return math.exp(draw.score.logprob - high), math.exp(draw.score.logprob - low)

    return Suspicion(name=f"temperature=1 in place of {temperature:g}", ratio=ratio)


def shunned_repeats() -> Suspicion:
    """Tokens that were there before come less often: a repetition, presence or frequency penalty."""

    def ratio(draw: Draw) -> Bounds:
        repeats = {index: logprob for index, logprob in draw.score.top.items() if index in draw.before}
        mass = math.fsum(map(math.exp, repeats.values()))
        if not 0.0 < mass < 1.0:
            return 1.0, 1.0
        shunned = REPEAT_ODDS * mass / (REPEAT_ODDS * mass + 1.0 - mass)
        exact = shunned / mass if draw.id in repeats else (1.0 - shunned) / (1.0 - mass)
        return exact, exact

    return Suspicion(name="a penalty on repeats", ratio=ratio)


def _cut(num_kept: Callable[[TokenScore], int | None]) -> Callable[[Draw], Bounds]:
    """The ratio for a cut to the likeliest `num_kept` tokens; None if that is more than are known."""

    def ratio(draw: Draw) -> Bounds:
        number = num_kept(draw.score)
        if number is None:
            return 1.0, 1.0
        kept = dict(list(draw.score.top.items())[:number])
        mass = min(1.0, math.fsum(map(math.exp, kept.values())))
        exact = LEAK + ((1.0 - LEAK) / mass if draw.id in kept else 0.0)
        return exact, exact

    return ratio
