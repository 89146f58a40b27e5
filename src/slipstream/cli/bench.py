"""`slipstream bench NAME`: run a benchmark, print its figures."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from slipstream.errors import ConfigError
from slipstream.types import Json

bench_app = typer.Typer(help="Measure what the parts cost.", no_args_is_help=True)


@bench_app.command()
def datapath(
    turns: Annotated[int, typer.Option(min=1, help="Turns of the rollout that is encoded.")] = 200,
    rollouts: Annotated[int, typer.Option(min=8, help="Rollouts that are merged.")] = 512,
    tokens: Annotated[int, typer.Option(min=200, help="Tokens of each of them.")] = 32_768,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Tokens encoded per turn, and the time and memory of merging and batching."""
    from slipstream.bench.harness.datapath import DatapathLoad, run

    _print(run(DatapathLoad(turns=turns, rollouts=rollouts, tokens=tokens)), as_json)


@bench_app.command()
def engine(
    model: Annotated[str, typer.Option(help="A model folder, or the name of a fetched model.")] = "smollm2",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    requests: Annotated[int | None, typer.Option(min=1, help="Requests at once; 32, or 256 on a GPU.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Of each request; 128, or 256 on a GPU.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=1, help="Of each answer; 64, or 128 on a GPU.")] = None,
    long: Annotated[int | None, typer.Option(min=0, help="Of longer prompts; none, or 1,920 on a GPU.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the median counts.")] = 3,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, or both with a comma between; both, or bfloat16 on a GPU.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """The embedded engine against transformers in one run: continuous batching, and generate or, on a GPU, a static
    cache with CUDA graphs."""
    from slipstream.bench.engine import EngineBenchLoad, run
    from slipstream.hub import find_model

    if device not in ("cpu", "cuda"):
        raise ConfigError(f'--device "{device}": give cpu or cuda')
    on_gpu = device == "cuda"
    load = EngineBenchLoad(
        device=device,
        requests=(requests or (256 if on_gpu else 32),),
        prompt_tokens=prompt_tokens or (256 if on_gpu else 128),
        new_tokens=new_tokens or (128 if on_gpu else 64),
        long_prompt_tokens=long if long is not None else (1920 if on_gpu else 0),
        rollouts=64 if on_gpu else 8,
        rounds=rounds,
        dtypes=tuple((dtype or ("bfloat16" if on_gpu else "float32,bfloat16")).split(",")),
        on_status=lambda line: typer.echo(line, err=True),
    )
    _print(run(find_model(model), load), as_json)


@bench_app.command()
def overhead(
    turns: Annotated[int, typer.Option(min=1, help="Turns of each rollout.")] = 20,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts at once, for the cost of a turn.")] = 1_000,
    sizes: Annotated[
        str, typer.Option(help="Rollouts at once, for the cost of one; commas between.")
    ] = "100,1000,10000",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each load but the largest; the median counts.")] = 3,
    queued: Annotated[
        str, typer.Option(help="Jobs submitted together, 64 of them under way at once; commas between.")
    ] = "1000,20000",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """What the harness itself costs: a turn, a rollout and its memory, with a model and a tool that take no time."""
    from slipstream.bench.harness.overhead import OverheadLoad, run

    load = OverheadLoad(
        turns=turns,
        rollouts=rollouts,
        sizes=_numbers("--sizes", sizes),
        rounds=rounds,
        queued=_numbers("--queued", queued),
    )
    _print(run(load), as_json)


@bench_app.command()
def sandbox(
    provider: Annotated[str, typer.Option(help="local, or oci.")] = "local",
    image: Annotated[str | None, typer.Option(help="For oci: the image of the containers.")] = None,
    starts: Annotated[
        int | None, typer.Option(min=1, help="Starts, one after the other; 1000 for local, 20 for oci if not given.")
    ] = None,
    concurrent: Annotated[int, typer.Option(min=1, help="Sandboxes at once.")] = 64,
    execs: Annotated[int, typer.Option(min=1, help="Commands, one after the other.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """How long a sandbox's start, a lease from the pool and a command take, how many work at once, and what is left
    over."""
    from slipstream.bench.sandbox import SandboxBenchLoad, run
    from slipstream.hub.places import default_home
    from slipstream.settings import SandboxConfig
    from slipstream.types import SandboxSpec
    from slipstream.wiring.attempts import make_provider

    if provider not in ("local", "oci"):
        raise ConfigError(f'--provider "{provider}": name local or oci')
    if (image is None) == (provider == "oci"):
        raise ConfigError("--image goes with --provider oci, which needs it: name an image that is here")
    config = SandboxConfig(provider=provider)  # type: ignore[arg-type]  # it was checked
    load = SandboxBenchLoad(
        starts=starts or (1_000 if provider == "local" else 20),
        concurrent=concurrent,
        execs=execs,
        pooled=96 if provider == "local" else 16,
    )
    spec = SandboxSpec() if image is None else SandboxSpec(base=image)
    figures = run(lambda: make_provider(config), spec, load, home=default_home())
    _print({"provider": provider, **figures}, as_json)


@bench_app.command()
def starts(
    processes: Annotated[int, typer.Option(min=1, help="Processes that start sandboxes.")] = 2,
    concurrent: Annotated[int, typer.Option(min=1, help="Sandboxes of each at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long.")] = 5.0,
    hold_s: Annotated[float, typer.Option(min=0.0, help="How long each sandbox is kept.")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """How many local sandboxes per second several processes start at once, and how much CPU they use."""
    from slipstream.bench.starts import StartsLoad, run

    _print(run(StartsLoad(processes=processes, concurrent=concurrent, seconds=seconds, hold_s=hold_s)), as_json)


@bench_app.command()
def localise(
    tasks: Annotated[Path, typer.Option(help="A folder of made tasks.")],
    num: Annotated[int | None, typer.Option(min=1, help="How many of them; all if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """How often the faulty function is among the first answers to the names in a statement: search against grep."""
    from slipstream.bench.localise import run

    _print(run(tasks, num=num), as_json)


@bench_app.command()
def codesearch(
    repo: Annotated[Path, typer.Option(help="A folder with source code; it is copied, and never changed.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """What code search costs: the first answer, later ones, one after an edit, a further rollout."""
    from slipstream.bench.codesearch import run

    if not repo.is_dir():
        raise ConfigError(f"--repo {repo} is not a folder: name one with source code")
    _print(run(repo), as_json)


@bench_app.command()
def search(
    passages: Annotated[int, typer.Option(min=1_000, help="Passages of the index.")] = 100_000,
    embedded: Annotated[int, typer.Option(min=100, help="Those that are really embedded.")] = 5_000,
    agents: Annotated[int, typer.Option(min=1, help="Agents that search.")] = 64,
    pause_s: Annotated[float, typer.Option(min=0.001, help="Their pause between searches, on average.")] = 2.0,
    searches: Annotated[int, typer.Option(min=1, help="Of each agent.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """How long a search in a local index takes, what a further process costs, and how long 32 slow pages take."""
    from slipstream.bench.search import SearchBenchLoad, run

    load = SearchBenchLoad(
        passages=passages,
        embedded=min(embedded, passages),
        agents=agents,
        pause_s=pause_s,
        searches=searches,
        on_status=lambda line: typer.echo(line, err=True),
    )
    _print(run(load), as_json)


@bench_app.command()
def loop(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changed settings, for every policy.")
    ] = None,
    model: Annotated[str, typer.Option(help="The recipe to train: quickstart, smollm2, or file.py:function.")] = (
        "quickstart"
    ),
    policies: Annotated[str, typer.Option(help="Policies, with commas between.")] = "bounded,pipeline,adaptive",
    steps: Annotated[int, typer.Option(min=1, help="Steps under each policy.")] = 4,
    skip: Annotated[int, typer.Option(min=0, help="Steps at the beginning that are not counted.")] = 1,
    seed: Annotated[int, typer.Option(help="Of every run.")] = 0,
    device: Annotated[str, typer.Option(help="Of the engine: auto, cpu or cuda.")] = "auto",
    runs: Annotated[Path | None, typer.Option(help="Keep the runs in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """The whole training loop under each policy: its speed, how busy GPU, cores and learner are, and the bottleneck."""
    from slipstream.bench.loop import LoopBenchLoad, run, table

    names = tuple(policies.split(","))
    load = LoopBenchLoad(
        recipe=model,
        policies=names,
        steps=steps,
        skip=skip,
        seed=seed,
        device=device,
        settings=tuple(settings or ()),
    )
    found = run(load, runs=runs, on_status=lambda line: typer.echo(line, err=True))
    if as_json:
        _print(found, as_json)
    else:
        print("\n".join(table(found, names)))


@bench_app.command()
def simulate(
    tasks: Annotated[int, typer.Option(min=8, help="Tasks of each run.")] = 48,
    samples: Annotated[int, typer.Option(min=1, help="Rollouts of each of them.")] = 4,
    slots: Annotated[int, typer.Option(min=2, help="Of the engine; fewer are more contended.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="How often every run is made.")] = 2,
    model: Annotated[
        Path | None, typer.Option(help="A model folder that calls the demo's tools; without it one is made.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Keep the runs in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Predictions of `slipstream simulate`, fitted on one real run, against other real runs."""
    from slipstream.bench.simulate import SimulateBenchLoad, run, table

    load = SimulateBenchLoad(tasks=tasks, samples=samples, slots=slots, rounds=rounds)
    found = run(load, model=model, runs=runs, on_status=lambda line: typer.echo(line, err=True))
    if as_json:
        _print(found, as_json)
    else:
        print("\n".join(table(found)))


@bench_app.command()
def stalls(
    only: Annotated[str, typer.Option(help="Names of inputs, with commas between; all if not given.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each; the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """How long the event loop is blocked by inputs that an agent could craft for that."""
    from slipstream.bench.harness.stalls import inputs, run, table
    from slipstream.names import did_you_mean
    from slipstream.settings import SandboxConfig
    from slipstream.wiring.attempts import make_provider

    names, known = [name for name in only.split(",") if name], [one.name for one in inputs(0.0)]
    for name in names:
        if name not in known:
            raise ConfigError(f'--only "{name}": there is no such input{did_you_mean(name, known)}')
    found = run(lambda: make_provider(SandboxConfig()), names, rounds=rounds)
    if as_json:
        _print(found, as_json)
    else:
        print("\n".join(table(found)))


def _numbers(option: str, given: str) -> tuple[int, ...]:
    if not all(number.isdecimal() and int(number) for number in given.split(",")):
        raise ConfigError(f'{option} "{given}": give whole numbers above 0 with commas between, such as 100,1000')
    return tuple(int(number) for number in given.split(","))


def _print(figures: Mapping[str, Json], as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            _print({_inner_name(name, key): part for key, part in value.items()}, as_json)
            continue
        print(f"{name:<48} {value:,.2f}" if isinstance(value, float) else f"{name:<48} {value}")


def _inner_name(name: str, key: str) -> str:
    """`policies.adaptive`; `turn_us at 1000` where the key is the size of a load."""
    return f"{name} at {key}" if key.replace(".", "", 1).isdecimal() else f"{name}.{key}"


def _check_place(path: Path) -> None:
    """Refuse a place where no file can be written, before anything is run."""
    with _writing(path):
        if path.is_dir():
            raise ConfigError(f"{path} is a folder: name a file in it")
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent} for {path.name}: make it, or choose another place")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _write(path: Path, text: str) -> None:
    with _writing(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one sentence that `path` cannot be written."""
    try:
        yield
    except OSError as raised:
        raise ConfigError(f"{path} cannot be written ({raised.strerror}): choose another place") from raised


@bench_app.command()
def dispatch(
    regime: Annotated[str, typer.Option(help="paper, kv, cpu, tail, slowstart, faults, stream, or all.")] = "paper",
    seed: Annotated[int, typer.Option(help="Of the workload.")] = 7,
    workload: Annotated[
        Path | None, typer.Option(help="A workload of your own, in the form of docs/dispatch.md.")
    ] = None,
    only: Annotated[str, typer.Option(help="Run these policies alone; commas between.")] = "",
    families: Annotated[
        str | None, typer.Option(help="Families of workloads instead: names with commas between, or all.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Find the best settings of the fixed policies, and print them.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the workload to this file, and run nothing.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the makespans into this SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Every policy on the same workload, on virtual time, against a bound that none can beat."""
    from slipstream.bench.dispatch import TUNE_SEEDS, run, run_regime
    from slipstream.bench.dispatch import tune as find_best
    from slipstream.bench.dispatch_plot import draw
    from slipstream.simulate.regimes import REGIMES, make_workload
    from slipstream.simulate.workload import read_workload, workload_json

    if plot is not None and (tune or save is not None):
        raise ConfigError("--plot draws the makespans, which --tune and --save do not measure: leave it out")
    for place in (save, plot):
        if place is not None:
            _check_place(place)
    if families is not None:
        if workload is not None or plot is not None or only:
            raise ConfigError("--families goes with neither --workload nor --plot nor --only: leave one of them out")
        _dispatch_families(families, seed, tune=tune, save=save, as_json=as_json)
        return
    given = None if workload is None else read_workload(workload)
    names = list(REGIMES) if regime == "all" else [regime]
    if save is not None:
        _write(save, workload_json(given or make_workload(names[0], seed)))
        return
    if tune:
        for name in names:
            best = find_best([given] if given else [make_workload(name, number) for number in TUNE_SEEDS])
            _print({"regime": given.name if given else name, **asdict(best)}, as_json)
        return
    policies = [name for name in only.split(",") if name]
    if given:
        needs_best = not policies or any(name.endswith("_tuned") for name in policies)
        found = [run(given, None, find_best([given]) if needs_best else None, policies)]
    else:
        found = [run_regime(name, seed, policies) for name in names]
    if plot is not None:
        _write(plot, draw(found))
    for one in found:
        _print(one, as_json)


def _dispatch_families(given: str, seed: int, *, tune: bool, save: Path | None, as_json: bool) -> None:
    from slipstream.bench.dispatch import tune as find_best
    from slipstream.bench.dispatch_families import family_names, run_families, summary
    from slipstream.simulate.families import make_family
    from slipstream.simulate.workload import workload_json

    names = family_names(given)
    if save is not None:
        if len(names) > 1:
            raise ConfigError(f"--save writes one workload, but {len(names)} families are named: name one")
        _write(save, workload_json(make_family(names[0], seed)))
        return
    if tune:
        for name in names:
            _print({"regime": name, **asdict(find_best([make_family(name, seed)]))}, as_json)
        return
    found = []
    for one in run_families(names, seed):
        found.append(one)
        _print(one, as_json)
    if len(found) > 1:
        _print(summary(found), as_json)
