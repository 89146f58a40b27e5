"""Where an error of user code comes from."""

import json
import pickle
import re

import pytest

from slipstream.errors import (
    AgentError,
    ConfigError,
    GraderError,
    InfrastructureError,
    RunError,
    SandboxError,
    SlipstreamError,
    boundary,
    described,
    origin_of,
)


def raised_by(work: object) -> InfrastructureError:
    with pytest.raises(InfrastructureError) as raised, boundary(GraderError, "grader g"):
        work()  # type: ignore[operator]
    return raised.value


def look_up() -> None:
    table: dict[str, int] = {}
    inner(table)


def inner(table: dict[str, int]) -> None:
    _ = table["x"]


def test_the_last_line_of_user_code_is_named_and_its_traceback_kept() -> None:
    raised = raised_by(look_up)
    assert re.fullmatch(r"grader g: KeyError: 'x' \(.*test_errors\.py, line \d+, in inner\)", str(raised))
    origin = raised.origin
    assert origin is not None and (origin.kind, origin.may_pass) == ("KeyError", False)
    assert "in look_up" in origin.trace and 'table["x"]' in origin.trace
    assert origin.trace.endswith("KeyError: 'x'")
    assert "errors.py" not in origin.trace.replace("test_errors.py", "")


def test_it_is_kept_on_the_way_between_processes() -> None:
    raised = raised_by(look_up)
    assert pickle.loads(pickle.dumps(raised)).origin == raised.origin


def test_a_mistake_in_calling_a_library_names_the_line_that_called_it() -> None:
    raised = raised_by(lambda: json.loads(3))  # type: ignore[arg-type]
    assert raised.origin is not None
    assert "test_errors.py" in raised.origin.place and not raised.origin.may_pass


def refuse_connection() -> None:
    raise ConnectionRefusedError("nobody there")


def judge() -> None:
    try:
        refuse_connection()
    except OSError:
        raise ValueError("the judge gave no answer")  # noqa: B904  # as people write it


@pytest.mark.parametrize("work", [refuse_connection, judge, lambda: json.loads("<html>")])
def test_what_comes_from_outside_may_pass(work: object) -> None:
    origin = raised_by(work).origin
    assert origin is not None and origin.may_pass


def test_an_error_without_user_code_has_no_origin() -> None:
    try:
        json.loads("{")
    except ValueError as raised:
        assert origin_of(raised.with_traceback(None)) is None
        assert described(raised.with_traceback(None)).startswith("JSONDecodeError: ")


def test_errors_of_ours_pass_a_boundary_as_they_are() -> None:
    with pytest.raises(SandboxError, match=r"^no room$"), boundary(GraderError, "grader g"):
        raise SandboxError("no room")


def test_a_traceback_without_end_is_cut() -> None:
    def deeper() -> None:
        deeper()

    origin = raised_by(deeper).origin
    assert origin is not None and origin.kind == "RecursionError" and len(origin.trace.splitlines()) < 90


def test_what_the_agent_did_what_is_retried_and_what_ends_a_run_are_kept_apart() -> None:
    leaves = [kind for kind in descendants(SlipstreamError) if not descendants(kind)]
    kinds = (AgentError, InfrastructureError, RunError)
    assert all(sum(issubclass(leaf, kind) for kind in kinds) <= 1 for leaf in leaves)
    assert {leaf.__name__ for leaf in leaves if not issubclass(leaf, kinds)} == {"ConfigError", "ReplayError"}


def descendants(kind: type[SlipstreamError]) -> list[type[SlipstreamError]]:
    ours = [each for each in kind.__subclasses__() if each.__module__ == "slipstream.errors"]
    return [*ours, *(deeper for each in ours for deeper in descendants(each))]


def test_a_setting_at_fault_is_named_also_after_a_way_between_processes() -> None:
    raised = ConfigError.setting("carry", True, "set oversample above 0", "oversample=1")
    assert str(raised) == "carry=true: set oversample above 0"
    again = pickle.loads(pickle.dumps(raised))
    assert (str(again), again.key, again.value, again.remedies) == (str(raised), "carry", True, ("oversample=1",))
