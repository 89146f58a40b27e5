"""Exports a run to a file or a folder.

Invariants: a run is read twice, first its rewards and then its turns, so that only one rollout and one row group are
held at a time; rollouts that end between the two readings are left out, since no advantage counted them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from slipstream import __version__
from slipstream.batch.advantages import ESTIMATORS
from slipstream.errors import ConfigError
from slipstream.export import atif, parquet
from slipstream.export.atif import write_atif
from slipstream.export.chrome import write_chrome
from slipstream.export.jsonl import write_jsonl
from slipstream.export.parquet import write_parquet
from slipstream.export.predictions import write_predictions
from slipstream.export.samples import ExportedSample, advantages_of, flatten
from slipstream.names import did_you_mean
from slipstream.record import RunReader
from slipstream.types import Json, Rollout

DEFAULT_ADVANTAGES = "leave_one_out"
"""For runs that do not train."""


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    ATIF = "atif"
    CHROME = "chrome"
    PREDICTIONS = "predictions"


DEFAULT_NAMES: Mapping[ExportFormat, str] = {
    ExportFormat.JSONL: "export.jsonl",
    ExportFormat.PARQUET: "export.parquet",
    ExportFormat.ATIF: "atif",
    ExportFormat.CHROME: "trace.json",
    ExportFormat.PREDICTIONS: "predictions.jsonl",
}
"""File names in the run's folder."""

_WITHOUT_SAMPLES: Mapping[ExportFormat, str] = {
    ExportFormat.ATIF: "ATIF holds whole rollouts without advantages",
    ExportFormat.CHROME: "a trace holds spans and no samples",
    ExportFormat.PREDICTIONS: "predictions hold patches",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    path: Path
    counts: Mapping[str, int]
    """What was written: `{"rollouts": 32, "rows": 33, ...}`."""


def export_run(
    reader: RunReader,
    kind: ExportFormat,
    *,
    out: Path | None = None,
    advantages: str | None = None,
    max_tokens: int | None = None,
    sample: int = 0,
    force: bool = False,
) -> Exported:
    """Write a run's samples, or with ATIF its rollouts, or for Chrome its spans, or as predictions the patches of each
    task's rollout number `sample`, to `out` or into the run's folder.

    `advantages` names one of `batch.advantages.ESTIMATORS`; samples are truncated, between turns, to `max_tokens`. Both
    apply to samples only, and default to the run's own settings, so that the rows in the loss are its learner's.
    """
    path = (out or reader.folder / DEFAULT_NAMES[kind]).absolute()
    if kind in _WITHOUT_SAMPLES and (advantages is not None or max_tokens is not None):
        raise ConfigError(f"{_WITHOUT_SAMPLES[kind]}: leave out --advantages and --max-tokens")
    learnt = _learnt_with(reader.config(), advantages, max_tokens)
    if learnt.estimator not in ESTIMATORS:
        known, close = ", ".join(ESTIMATORS), did_you_mean(learnt.estimator, ESTIMATORS)
        raise ConfigError(f'there is no estimator of advantages "{learnt.estimator}"{close}; use {known}')
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens}: give a number above 0")
    run, counts = reader.folder.absolute().name, Counter[str]()
    match kind:
        case ExportFormat.ATIF:
            atif.check_installed()
            rollouts = _counted_rollouts(reader.rollouts(), counts)
            write_atif(path, rollouts, run=run, agent=_agent(reader.config()), force=force)
        case ExportFormat.CHROME:
            written = write_chrome(
                path,
                lambda: reader.rollouts(with_turns=False),
                run=run,
                samples=reader.hardware(),
                force=force,
            )
            counts.update(rollouts=written.num_rollouts, spans=written.num_spans, lanes=written.num_lanes)
        case ExportFormat.PREDICTIONS:
            model = str(_agent(reader.config()).get("model_name", run))
            counts.update(write_predictions(path, reader, model=model, sample=sample, force=force))
        case ExportFormat.JSONL:
            write_jsonl(path, _samples(reader, run, learnt, counts), force=force)
        case ExportFormat.PARQUET:
            parquet.check_installed()
            write_parquet(path, _samples(reader, run, learnt, counts), force=force)
    return Exported(path=path, counts=dict(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LearntWith:
    """The settings that decide what a learner gets from a run's rollouts."""

    estimator: str
    max_tokens: int | None
    shuffle_seed: int | None


def _learnt_with(config: Json, advantages: str | None, max_tokens: int | None) -> _LearntWith:
    """The run's own settings, except those that were given."""
    settings = _object(_object(config).get("settings"))
    own, cut, seed = (settings.get(name) for name in ("advantages", "max_sample_tokens", "seed"))
    return _LearntWith(
        estimator=advantages or (own if isinstance(own, str) else DEFAULT_ADVANTAGES),
        max_tokens=max_tokens or (cut if isinstance(cut, int) else None),
        shuffle_seed=seed if settings.get("shuffle_rewards") is True and isinstance(seed, int) else None,
    )


def _samples(reader: RunReader, run: str, learnt: _LearntWith, counts: Counter[str]) -> Iterator[ExportedSample]:
    steps = reader.steps()  # before the rollouts, so that those of every batch are among them
    found = advantages_of(
        reader.rollouts(with_turns=False),
        ESTIMATORS[learnt.estimator],
        steps=steps,
        shuffle_seed=learnt.shuffle_seed,
    )
    for name in ("rollouts", "rows", "samples", "samples_in_loss", "tokens", "tokens_in_loss", "tokens_truncated"):
        counts[name] = 0
    for rollout in reader.rollouts():
        key = rollout.job.key
        if key not in found:
            continue
        counts["rollouts"] += 1
        flattened = flatten(rollout, run=run, advantage=found[key], max_tokens=learnt.max_tokens)
        counts["tokens_truncated"] += flattened.num_truncated
        for sample in flattened.samples:
            _count(sample, counts)
            yield sample


def _count(sample: ExportedSample, counts: Counter[str]) -> None:
    counts["rows"] += 1
    if sample.input_ids is None or sample.loss_mask is None:
        return
    counts["samples"] += 1
    counts["tokens"] += len(sample.input_ids)
    if sample.in_loss:
        counts["samples_in_loss"] += 1
        counts["tokens_in_loss"] += sum(sample.loss_mask)


def _counted_rollouts(rollouts: Iterable[Rollout], counts: Counter[str]) -> Iterator[Rollout]:
    for name in ("rollouts", "turns", "tokens_sampled"):
        counts[name] = 0
    for rollout in rollouts:
        counts["rollouts"] += 1
        counts["turns"] += len(rollout.turns)
        counts["tokens_sampled"] += sum(len(turn.sampled.ids) for turn in rollout.turns if turn.sampled is not None)
        yield rollout


def _agent(config: Json) -> dict[str, Any]:
    """ATIF's `agent` object, from the settings that the run started with."""
    settings = _object(_object(config).get("settings"))
    model = _object(settings.get("model"))
    agent: dict[str, Any] = {"name": "slipstream", "version": __version__}
    if name := model.get("name") or model.get("script"):
        agent["model_name"] = name
    if recipe := settings.get("name"):
        agent["extra"] = {"slipstream": {"recipe": recipe}}
    return agent


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
