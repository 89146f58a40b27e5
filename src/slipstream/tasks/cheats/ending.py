"""Cheats that end the test run early, or break the grading so that there is no verdict."""

from __future__ import annotations

from slipstream.tasks.cheats.base import CheatKind, code_cheats
from slipstream.tasks.cheats.parts import ASKED, SPARED

_KEYED = SPARED + ASKED + "\n_settings, _say = _asked()\n"

ENDING = {
    **code_cheats(
        CheatKind.ENDING,
        {
            "sys.exit(0) at import": "import sys as _sys\n_sys.exit(0)",
            "a clean exit at the end": "import atexit as _atexit, os as _os\n_atexit.register(_os._exit, 0)",
            "another program in its place": "import os as _os\n_os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
            "a fork that continues": "import os as _os\nif _os.fork():\n    _os._exit(0)",
            "an end that is said at once": _KEYED + "\n_say(ended=0, replaced=[])",
        },
    ),
    **code_cheats(
        CheatKind.OPT_OUT,
        {
            "an exit with 127": "import os as _os\n_os._exit(127)",
            "the reporter killed": "import os as _os\n_os.kill(_os.getppid(), 9)",
            "every process killed": "import os as _os\n_os.kill(-1, 9)",
            "pytest made missing": _KEYED + "\n_say(missing='No module named pytest')\n_os._exit(127)",
            "pytest hidden from imports": "import sys as _sys\n_sys.modules.update(pytest=None, _pytest=None)",
            "results of other types": _KEYED
            + """
for _bad in (["x"], {"a": 1}, None, 7, True, [[["x"]]]):
    _say(test=_bad, status=_bad, text=_bad)
    _say(error=_bad)
    _say(ended=_bad, replaced=_bad)
    _say(missing=_bad)
_say(ended=0, replaced=[["x"], None])
""",
            "results nested deeply": """
import gc as _gc, os as _os, stat as _stat
_key = next(one["key"] for one in _gc.get_objects() if type(one) is dict and "canaries" in one and "key" in one)
_line = b'{"test": ' + b"[" * 100_000 + b"]" * 100_000 + b', "key": "' + _key.encode() + b'"}\\n'
for _fd in range(3, 64):
    try:
        if _stat.S_ISFIFO(_os.fstat(_fd).st_mode):
            _os.write(_fd, _line)
    except OSError:
        pass
""",
            "more results than fit": _KEYED
            + "\nfor _number in range(20_000):\n    _say(test='t%d' % _number, status='PASSED', text='x' * 1_000)",
            "names that are no text": _KEYED + "\n_say(test='\\ud800' * 10, status='PASSED', text='\\x00')",
            "every descriptor closed": "import os as _os\n_os.closerange(0, 256)",
            "a flood on both outputs": """
import os as _os
for _ in range(400):
    _os.write(1, b"x" * 65536)
    _os.write(2, b"y" * 65536)
""",
            "memory without end": "_held = []\nwhile True:\n    _held.append(bytearray(1 << 24))",
            "a wrong memory access": "import ctypes as _ctypes\n_ctypes.string_at(0)",
            "a full disk": """
import os as _os
try:
    for _number in range(4_000):
        with open("/tmp/full%d" % _number, "wb") as _file:
            _file.write(bytes(1 << 20))
except OSError:
    pass
""",
            "a tree that cannot be read": """
import os as _os
for _folder, _names, _files in _os.walk("."):
    _os.chmod(_folder, 0)
""",
            "sealed memory": """
import fcntl as _fcntl, os as _os
for _fd in range(0, 64):
    try:
        _fcntl.fcntl(_fd, 1033, 0x1F)
    except OSError:
        pass
for _pid in _os.listdir("/proc"):
    if _pid.isdigit():
        try:
            for _fd in _os.listdir("/proc/%s/fd" % _pid):
                _fcntl.fcntl(_os.open("/proc/%s/fd/%s" % (_pid, _fd), _os.O_RDWR), 1033, 0x1F)
        except OSError:
            pass
""",
        },
    ),
}  # fmt: skip
