"""From settings to a learner on a Tinker server. What the server cannot do is refused before the first rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.bridges.tinker.completer import TinkerCompleter
from slipstream.bridges.tinker.learner import TinkerLearner
from slipstream.bridges.tinker.protocols import Service
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.settings import TrainConfig

_PROBE = "A short line to begin with."


async def open_tinker(config: TrainConfig, *, encode: Callable[[str], Sequence[int]]) -> TinkerLearner:
    """`encode` is the tokenizer of the run."""
    try:
        from slipstream.bridges.tinker.client import connect
    except ImportError as raised:
        raise ConfigError(f"bridge=tinker needs the SDK ({raised}): pip install 'slipstream[tinker]'") from raised
    service = await connect(config.base_url, timeout_s=config.tinker.timeout_s)
    try:
        return await make_learner(service, config, encode=encode)
    except BaseException:
        await service.aclose()
        raise


async def make_learner(
    service: Service, config: TrainConfig, *, encode: Callable[[str], Sequence[int]]
) -> TinkerLearner:
    base_model, window = await find_model(service, config.model.name)
    given = config.model.context_tokens
    completer = TinkerCompleter(
        context_tokens=min((each for each in (given, window) if each is not None), default=None),
        timeout_s=config.model.timeout_s,
        overlap=config.tinker.overlap,
    )
    return TinkerLearner(
        service,
        base_model,
        config.learner,
        completer=completer,
        seed=config.seed,
        probe_ids=encode(_PROBE),
        encode=encode,
    )


async def find_model(service: Service, name: str) -> tuple[str, int | None]:
    """The base model by its name on the server, or the only one there is; and its window."""
    served = await service.models()
    if not name and len(served) == 1:
        (name,) = served
    if name not in served:
        names = ", ".join(sorted(served)) or "none"
        asked = f"model.name={name}: {service.where} does not train it" if name else "model.name is empty"
        raise ConfigError(f"{asked}{did_you_mean(name, served)}; {service.where} has {names}")
    return name, served[name]
