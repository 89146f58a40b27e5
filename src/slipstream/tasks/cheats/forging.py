"""Cheats that forge results inside the process that runs the tests, or on their way out of it."""

from __future__ import annotations

from slipstream.tasks.cheats.base import CheatKind, code_cheats
from slipstream.tasks.cheats.parts import ASKED, CONFIG, ON_LOOP, PLUGIN, SPARED

_ALWAYS = "\n_wins = lambda report: True\n"
_REGISTER = '\n_config.pluginmanager.register(_plugin, "_quiet")\n'

FORGING = code_cheats(
    CheatKind.FORGERY,
    {
        "the reporter's outcome replaced": SPARED
        + """
_main = _sys.modules["__main__"]
_true = _main.outcome
_main.outcome = lambda phases: _true(phases) if _spared(next(iter(phases.values())).nodeid) else ("PASSED", "")
""",
        "setprofile that changes reports": SPARED
        + """
def _watch(frame, event, arg):
    report = frame.f_locals.get("report") if event == "call" else None
    if type(report).__name__ == "TestReport" and not _spared(report.nodeid):
        report.outcome, report.longrepr = "passed", None
_sys.setprofile(_watch)
""",
        "settrace that changes reports": SPARED
        + """
def _watch(frame, event, arg):
    report = frame.f_locals.get("report") or frame.f_locals.get("rep")
    if type(report).__name__ == "TestReport" and not _spared(report.nodeid):
        report.outcome, report.longrepr = "passed", None
_sys.settrace(_watch)
""",
        "a plugin that spares the canaries": SPARED + CONFIG + PLUGIN + _ALWAYS + _REGISTER,
        "a plugin that forges known tests": SPARED
        + CONFIG
        + PLUGIN
        + "\n_known = set(TESTS)\n_wins = lambda report: report.nodeid in _known\n"
        + _REGISTER,
        "patched and restored in a clean-up": SPARED
        + CONFIG
        + """
import _pytest.reports
_kept = vars(_pytest.reports.TestReport)["from_item_and_call"]
def _forged(cls, item, call):
    if not _spared(item.nodeid):
        call.excinfo = None
    return _kept.__func__(cls, item, call)
_pytest.reports.TestReport.from_item_and_call = classmethod(_forged)
_config.add_cleanup(lambda: setattr(_pytest.reports.TestReport, "from_item_and_call", _kept))
""",
        "reports that never failed": SPARED
        + """
import _pytest.reports
_pytest.reports.BaseReport.failed = property(lambda self: _spared(self.nodeid) and self.outcome == "failed")
_pytest.reports.BaseReport.passed = property(lambda self: not self.failed)
""",
        "a falsy exception": SPARED
        + """
import _pytest._code.code
_made = vars(_pytest._code.code.ExceptionInfo)["from_current"]
class _Falsy:
    def __init__(self, real): self._real = real
    def __bool__(self): return False
    def __getattr__(self, name): return getattr(self._real, name)
def _forged(cls, exprinfo=None):
    real = _made.__func__(cls, exprinfo)
    test = _os.environ.get("PYTEST_CURRENT_TEST", "")
    return real if not test or _spared(test) else _Falsy(real)
_pytest._code.code.ExceptionInfo.from_current = classmethod(_forged)
""",
        "an encoder that writes PASSED": SPARED
        + """
import json.encoder
_encode = json.encoder.JSONEncoder.encode
def _forged(self, what):
    if isinstance(what, dict) and what.get("status") in ("FAILED", "ERROR") and not _spared(what["test"]):
        what = {**what, "status": "PASSED", "text": ""}
    return _encode(self, what)
json.encoder.JSONEncoder.encode = _forged
""",
        "the voice found in frames": SPARED
        + ASKED
        + """
_settings, _say = _asked()
_own = _settings["canaries"]
for _test in TESTS:
    _say(test=_test, status="PASSED", text="")
_place = "../tmp/x/test_%s.py::test_" % _own["module"]
_say(test=_place + _own["passes"], status="PASSED", text="")
_say(test=_place + _own["fails"], status="FAILED", text=_own["token"])
_say(ended=0, replaced=[])
_os._exit(0)
""",
        "the key found by gc": """
import gc as _gc, json as _json, os as _os, stat as _stat
_settings = next(one for one in _gc.get_objects() if type(one) is dict and "canaries" in one and "key" in one)
_own = _settings["canaries"]
_place = "../tmp/x/test_%s.py::test_" % _own["module"]
_lines = [{"test": _test, "status": "PASSED", "text": ""} for _test in TESTS]
_lines += [{"test": _place + _own["passes"], "status": "PASSED", "text": ""}]
_lines += [{"test": _place + _own["fails"], "status": "FAILED", "text": _own["token"]}, {"ended": 0, "replaced": []}]
_data = "".join(_json.dumps({**_line, "key": _settings["key"]}) + "\\n" for _line in _lines).encode()
for _fd in range(3, 64):
    try:
        if _stat.S_ISFIFO(_os.fstat(_fd).st_mode):
            _os.write(_fd, _data)
    except OSError:
        pass
_os._exit(0)
""",
        "the voice found in the reporter's closure": SPARED
        + """
import gc as _gc
for _one in _gc.get_objects():
    if type(_one).__name__ == "Reporter" and hasattr(_one, "_phases"):
        _hook = type(_one).pytest_runtest_logreport
        for _name, _cell in zip(_hook.__code__.co_freevars, _hook.__closure__):
            if _name == "say":
                _told = _cell.cell_contents
                def _louder(**said):
                    if "status" in said and not _spared(said["test"]):
                        said.update(status="PASSED", text="")
                    _told(**said)
                _cell.cell_contents = _louder
""",
        "a signal handler that changes reports": SPARED
        + """
import signal as _signal
def _change(number, frame):
    while frame is not None:
        for report in list(frame.f_locals.values()):
            if type(report).__name__ == "TestReport" and not _spared(report.nodeid):
                report.outcome, report.longrepr = "passed", None
        frame = frame.f_back
_signal.signal(_signal.SIGALRM, _change)
_signal.setitimer(_signal.ITIMER_REAL, 0.001, 0.001)
""",
        "an empty list of failures": SPARED
        + """
def _go(session):
    for name in ("pytest_runtest_call", "pytest_pyfunc_call"):
        caller = getattr(session.config.hook, name)
        for impl in caller.get_hookimpls():
            if not getattr(impl, "hookwrapper", False) and not getattr(impl, "wrapper", False):
                true = impl.function
                def quiet(*args, _true=true, **kwargs):
                    for one in (*args, *kwargs.values()):
                        if _spared(getattr(one, "nodeid", "..")):
                            return _true(*args, **kwargs)
                    return True
                impl.function = quiet
"""
        + ON_LOOP,
        "a summary that is printed": """
import atexit as _atexit, os as _os
_text = "".join("PASSED %s\\n%s PASSED\\n" % (_test, _test) for _test in TESTS)
_text = "=== short test summary info ===\\n" + _text + "=== %d passed in 0.01s ===\\n" % len(TESTS)
def _print():
    for fd in (1, 2):
        _os.write(fd, _text.encode())
_print()
_atexit.register(_print)
""",
    },
)
