"""Reads and writes an engine's load as the text of vLLM's `/metrics`.

Invariants: several engines behind one endpoint count as one, with their requests and caches added up; a text without
the two request gauges gives None, never an idle engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slipstream.types import EngineLoad

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The names in newer and in older versions; despite the name, from 0 to 1."""
CACHE = "vllm:cache_config_info"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
CACHED_TOKENS = "vllm:prefix_cache_hits_total"
PREFILL_S = "vllm:request_prefill_time_seconds_sum"

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One line of the text."""

    name: str
    labels: Mapping[str, str]
    value: float


def load_from_metrics(text: str) -> EngineLoad | None:
    readings = list(_readings(text))

    def values(*names: str) -> list[float]:
        return [reading.value for reading in readings if reading.name in names]

    running, waiting, used = values(RUNNING), values(WAITING), values(*KV_USED)
    if not running or not waiting:
        return None
    sizes = [_num_tokens(reading.labels) for reading in readings if reading.name == CACHE]
    known = [size for size in sizes if size is not None]
    return EngineLoad(
        running=round(sum(running)),
        waiting=round(sum(waiting)),
        kv_used=sum(used) / len(used) if used else None,
        kv_tokens=sum(known) if known and len(known) == len(sizes) else None,
        prefill_tokens_s=_prefill_rate(sum(values(PROMPT_TOKENS)), sum(values(CACHED_TOKENS)), values(PREFILL_S)),
    )


def _prefill_rate(prompt: float, cached: float, seconds: list[float]) -> float | None:
    """Of all engines together. Prompts that are computed side by side each count their time: it is rather too low."""
    if prompt <= cached or sum(seconds) <= 0:
        return None
    return (prompt - cached) / sum(seconds) * len(seconds)


def load_to_metrics(load: EngineLoad, *, model: str) -> str:
    where = f'engine="0",model_name="{model}"'
    lines = [f"{RUNNING}{{{where}}} {load.running}", f"{WAITING}{{{where}}} {load.waiting}"]
    if load.kv_used is not None:
        lines.append(f"{KV_USED[0]}{{{where}}} {load.kv_used}")
    if load.kv_tokens is not None:
        lines.append(f'{CACHE}{{engine="0",kv_cache_size_tokens="{load.kv_tokens}"}} 1')
    return "\n".join(lines) + "\n"


def _readings(text: str) -> Iterator[Reading]:
    for line in text.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            yield Reading(name=match["name"], labels=dict(_LABEL.findall(match["labels"] or "")), value=value)


def _num_tokens(labels: Mapping[str, str]) -> int | None:
    """Reported directly by newer versions of vLLM, and as a number of blocks and their size by older ones."""
    given, blocks, size = (labels.get(key, "") for key in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
    if given.isdecimal():
        return int(given)
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None
