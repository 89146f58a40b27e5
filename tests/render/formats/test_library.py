import subprocess
import sys

CHECK = """
import sys
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.types import Message, Role

Renderer("qwen3", surrogate("qwen3")).render([Message(role=Role.USER, content="Hello.")], ())
assert "renderers.client" in sys.modules, "the library is not what writes this family"
assert not [name for name in sys.modules if name.partition(".")[0] == "openai"]
import openai
assert openai.__file__ and isinstance(openai.AsyncOpenAI, type) and openai.AsyncOpenAI is not object
"""


def test_a_format_of_the_library_is_opened_without_openai_which_can_be_imported_after_it() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
