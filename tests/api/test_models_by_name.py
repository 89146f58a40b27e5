"""Models of the Hugging Face hub by name: fetched from a server that speaks its protocol, refused without one."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

COMMIT = "0123456789012345678901234567890123456789"
FILES = {"config.json": b'{"model_type": "qwen3"}', "tokenizer.json": b"{}", "model.safetensors": b"x" * 100}
LEFT_OUT = {"pytorch_model.bin": b"y" * 100}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that a snapshot takes."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/org/tiny/tree/"):
            listed = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in (FILES | LEFT_OUT).items()
            ]
            body = json.dumps(listed).encode()
        elif path.startswith("/api/models/org/tiny/"):
            siblings = [{"rfilename": file} for file in FILES | LEFT_OUT]
            body = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode()
        elif path == f"/org/tiny/resolve/{COMMIT}/{name}" and name in FILES:
            body = FILES[name]
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fetched(name: str, endpoint: str, home: Path) -> str:
    """In a process of its own: the library reads its settings when it is imported."""
    code = (
        "import sys\nfrom slipstream.api.models import fetched_model\nfrom slipstream.errors import ConfigError\n"
        "try:\n    print(fetched_model(sys.argv[1]))\nexcept ConfigError as raised:\n    print('refused:', raised)"
    )
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code, name], env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip().splitlines()[-1]


def test_a_model_is_fetched_once_and_found_without_the_network(tmp_path: Path) -> None:
    with hub() as endpoint:
        folder = Path(fetched("org/tiny", endpoint, tmp_path))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert Path(fetched("org/tiny", "http://127.0.0.1:9", tmp_path)) == folder


def test_a_model_that_cannot_be_had_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with hub() as endpoint:
        said = fetched("org/none", endpoint, tmp_path)
    assert said.startswith("refused: the Hugging Face hub has no model org/none")
    said = fetched("org/tiny", "http://127.0.0.1:9", tmp_path)
    assert said.startswith("refused: the model org/tiny cannot be fetched and is not in the cache")
