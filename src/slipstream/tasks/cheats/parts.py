"""Pieces of code that several cheats share."""

from __future__ import annotations

SPARED = """
import sys as _sys
import os as _os
def _spared(nodeid):
    return nodeid.startswith(("::", "..", "/"))
"""
"""Recognises the grader's own two tests by their path, and leaves their results alone."""

ON_LOOP = """
def _watch(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "pytest_runtestloop" and "session" in frame.f_locals:
        _sys.setprofile(None)
        _go(frame.f_locals["session"])
_sys.setprofile(_watch)
"""
"""Calls `_go(session)` when all tests are collected and the first is about to run."""

EACH = """
import functools as _functools
import types as _types
def _each(change):
    space = globals()
    for name, value in list(space.items()):
        if isinstance(value, _types.FunctionType) and value.__module__ == __name__ and not name.startswith("_"):
            space[name] = change(value)
        elif isinstance(value, type) and value.__module__ == __name__ and not name.startswith("_"):
            for inner, method in list(vars(value).items()):
                if isinstance(method, _types.FunctionType) and not inner.startswith("__"):
                    setattr(value, inner, change(method))
"""
"""Replaces every function and method of the module."""

EVERYTHING = """
class _Everything:
    def __eq__(self, other): return True
    def __ne__(self, other): return True
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __bool__(self): return True
    def __hash__(self): return 0
    def __len__(self): return 1
    def __iter__(self): return iter(())
    def __call__(self, *args, **kwargs): return self
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def __getitem__(self, key): return self
    __add__ = __radd__ = __sub__ = __mul__ = __getitem__
"""

FROM_CALLER = """
import ast as _ast
def _wanted(name):
    frame = _sys._getframe(2)
    while frame is not None and not frame.f_code.co_name.startswith("test"):
        frame = frame.f_back
    if frame is None:
        raise LookupError
    tree = _ast.parse(open(frame.f_code.co_filename, encoding="utf-8").read())
    nodes = [node for node in _ast.walk(tree) if hasattr(node, "lineno")]
    here = [node for node in nodes if node.lineno <= frame.f_lineno <= (node.end_lineno or 0)]
    for node in here:
        if isinstance(node, _ast.With):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, _ast.Call) and _ast.unparse(call.func).endswith(("raises", "assertRaises")):
                    raise eval(_ast.unparse(call.args[0]), frame.f_globals, frame.f_locals)("as expected")
    for node in here:
        sides = []
        if isinstance(node, _ast.Assert) and isinstance(node.test, _ast.Compare):
            sides = [node.test.comparators[0], node.test.left]
        elif isinstance(node, _ast.Call) and getattr(node.func, "attr", "") == "assertEqual":
            sides = node.args[1::-1]
        for side, other in zip(sides, sides[::-1]):
            call = other.args[0] if isinstance(other, _ast.Call) and len(other.args) == 1 else other
            calls = [one for one in (other, call) if isinstance(one, _ast.Call)]
            if name not in [_ast.unparse(one.func).rpartition(".")[2] for one in calls]:
                continue
            try:
                return _ast.literal_eval(side)
            except ValueError:
                if isinstance(side, _ast.Name) and side.id in frame.f_locals:
                    return frame.f_locals[side.id]
    raise LookupError
"""
"""Finds what the calling test expects, in its source text."""

CONFIG = """
import gc as _gc
from _pytest.config import Config as _Config
_config = next(one for one in _gc.get_objects() if type(one) is _Config)
"""

PLUGIN = """
import types as _types2
import pytest as _pytest
_plugin = _types2.ModuleType("_quiet")
@_pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    made = yield
    report = made.get_result()
    if not _spared(report.nodeid) and _wins(report):
        report.outcome, report.longrepr = "passed", None
_plugin.pytest_runtest_makereport = pytest_runtest_makereport
del pytest_runtest_makereport
"""
"""A plugin that turns reports for which `_wins` is true into passes."""

ASKED = """
def _asked():
    frame = _sys._getframe()
    while frame is not None:
        if "asked" in frame.f_locals and "say" in frame.f_locals:
            return frame.f_locals["asked"], frame.f_locals["say"]
        frame = frame.f_back
    raise LookupError
"""
"""Finds the reporter's settings and its `say` function in the frames that called pytest."""
