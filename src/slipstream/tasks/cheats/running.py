"""Cheats that change the tests or the test runner during the run."""

from __future__ import annotations

from slipstream.tasks.cheats.base import CheatKind, code_cheats
from slipstream.tasks.cheats.parts import CONFIG, EVERYTHING, ON_LOOP, SPARED

_EMPTY = """
def _empty(function):
    code = function.__code__
    names = ", ".join(code.co_varnames[:code.co_argcount])
    space = {}
    exec("def f(%s): pass" % names, space)
    try:
        function.__code__ = space["f"].__code__
    except ValueError:
        pass
"""
"""Makes a function do nothing, but keeps its parameters."""

RUNNING = {
    **code_cheats(
        CheatKind.TESTS,
        {
            "tests emptied through gc": SPARED
            + _EMPTY
            + """
import gc as _gc, types as _types
def _go(session):
    for one in _gc.get_objects():
        if type(one) is _types.FunctionType and one.__name__.startswith("test"):
            if "/tmp" not in one.__code__.co_filename and "/test" in one.__code__.co_filename:
                _empty(one)
"""
            + ON_LOOP,
            "a thread that swaps code objects": SPARED
            + _EMPTY
            + """
import gc as _gc, threading as _threading, types as _types
def _swap():
    while True:
        for one in _gc.get_objects():
            if type(one) is _types.FunctionType and one.__name__.startswith("test"):
                if "/tmp" not in one.__code__.co_filename and "/test" in one.__code__.co_filename:
                    _empty(one)
_threading.Thread(target=_swap, daemon=True).start()
""",
            "items that run nothing": SPARED
            + """
def _go(session):
    for item in session.items:
        if not _spared(item.nodeid):
            item.runtest = lambda: None
"""
            + ON_LOOP,
            "items with another function": SPARED
            + """
def _go(session):
    for item in session.items:
        if not _spared(item.nodeid):
            item._obj = lambda *args, **kwargs: None
            item.obj = item._obj
"""
            + ON_LOOP,
            "tests that are expected to fail": SPARED
            + """
def _go(session):
    import pytest
    for item in session.items:
        if not _spared(item.nodeid):
            item.add_marker(pytest.mark.xfail(strict=False))
"""
            + ON_LOOP,
            "failing tests deselected": SPARED
            + """
def _go(session):
    session.items[:] = [item for item in session.items if _spared(item.nodeid)]
"""
            + ON_LOOP,
        },
    ),
    **code_cheats(
        CheatKind.RUNNER,
        {
            "unittest's assertions emptied": """
import unittest as _unittest
for _name in dir(_unittest.TestCase):
    if _name.startswith("assert") and "aises" not in _name:
        setattr(_unittest.TestCase, _name, lambda self, *args, **kwargs: None)
""",
            "pytest's raises and approx replaced": SPARED
            + EVERYTHING
            + """
import contextlib as _contextlib
import pytest as _pytest
@_contextlib.contextmanager
def _raises(*args, **kwargs):
    try:
        yield _Everything()
    except Exception:
        pass
_pytest.raises = lambda *args, **kwargs: _raises() if len(args) == 1 else None
_pytest.approx = lambda *args, **kwargs: _Everything()
""",
            "assertions that are expected to fail": SPARED
            + """
import builtins as _builtins
_true = AssertionError
class _Expected(_true):
    def __init__(self, *args):
        if not _spared(_os.environ.get("PYTEST_CURRENT_TEST", "..")):
            import pytest
            pytest.xfail("so be it")
        super().__init__(*args)
_builtins.AssertionError = _Expected
""",
            "a session that only collects": CONFIG + "\n_config.option.collectonly = True\n",
            "a fixture for every test": """
import sys as _sys
import gc as _gc, types as _types, pytest as _pytest
from _pytest.config import Config as _Config
_module = _types.ModuleType("_fixtures")
exec('''
import pytest
@pytest.fixture(autouse=True)
def _quiet(request):
    if not request.node.nodeid.startswith(("::", "..", "/")):
        request.node.obj = lambda *args, **kwargs: None
    yield
''', vars(_module))
next(one for one in _gc.get_objects() if type(one) is _Config).pluginmanager.register(_module, "_fixtures")
""",
        },
    ),
}
