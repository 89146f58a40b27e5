"""Get the vocabulary of GPT-OSS from the package index, for the tests that compare with OpenAI's own encoder.

    python scripts/fetch_o200k.py FOLDER        writes FOLDER/o200k_base.tiktoken

The litellm wheel carries the file. It is checked by its hash, and is not fetched if it is there already.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "litellm==1.108.4"
MEMBER = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
NAME = "o200k_base.tiktoken"
"""What openai_harmony looks for in the folder that TIKTOKEN_ENCODINGS_BASE names."""


def fetch(folder: Path) -> Path:
    """The vocabulary's path. Ends the program if it is not available."""
    path = folder / NAME
    if path.is_file() and _is_right(path.read_bytes()):
        return path
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", scratch]
        done = subprocess.run([sys.executable, "-m", "pip", "download", *options, WHEEL], check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            sys.exit(f"fetch_o200k: {WHEEL} could not be downloaded: see pip's message above")
        with zipfile.ZipFile(wheels[0]) as wheel:
            data = wheel.read(MEMBER)
    if not _is_right(data):
        sys.exit(f"fetch_o200k: the vocabulary in {WHEEL} is not the one expected: its sha256 is not {SHA256}")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _is_right(data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == SHA256


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/fetch_o200k.py FOLDER")
    fetch(Path(sys.argv[1]))
