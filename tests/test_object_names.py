"""Objects to names and back: importable ones anywhere, others in this process."""

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.names import is_local_name, load_object, name_of


def at_top() -> None: ...


class Holder:
    def method(self) -> None: ...


THING = Holder()


@pytest.mark.parametrize("thing", [at_top, Holder, Holder.method])
def test_what_can_be_imported_has_a_name_for_every_process(thing: object) -> None:
    name = name_of(thing, "thing")
    assert name == f"{__name__}:{thing.__qualname__}"  # type: ignore[attr-defined]  # all of them have one
    assert load_object(name, "thing") is thing
    assert not is_local_name(name)


def test_an_object_is_found_by_what_it_was_made_from() -> None:
    name = name_of(THING, "thing", defined_by=Holder)
    assert name == f"{__name__}:THING"
    assert load_object(name, "thing") is THING


def test_what_cannot_be_imported_has_a_name_in_this_process_alone() -> None:
    def inner() -> None: ...

    name = name_of(inner, "thing")
    assert is_local_name(name)
    assert load_object(name, "thing") is inner
    assert name_of(inner, "thing") == name
    assert name_of(lambda: None, "thing") != name
    with pytest.raises(ConfigError, match=r"move it to the top level of a \.py file"):
        load_object("local:inner-9999", "thing")


def test_a_script_names_its_file_and_is_not_run_twice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from slipstream.names import is_local_name, load_object, name_of\n"
        "print('ran')\n"
        "def mine(): ...\n"
        "name = name_of(mine, 'thing')\n"
        "print(name, is_local_name(name), load_object(name, 'thing') is mine)\n"
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert said == f"ran\n{script.resolve()}:mine True True\n"
