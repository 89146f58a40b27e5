"""SkyRL's server of the Tinker API on the CPU, as a process of its own."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BACKEND = {"max_lora_adapters": 3, "max_lora_rank": 8, "sample_max_num_sequences": 8, "train_micro_batch_size": 4}
START_S = 180.0


class Server:
    """What it keeps is in `folder`, so that it can be killed and started again."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = Path(sys.prefix)
        # The server starts its engine with the `uv run` that it was itself started with.
        command = [
            *(str(environment / "bin" / "uv"), "run", "--active", "--no-project", "-m", "skyrl.tinker.api"),
            *("--base-model", str(self.model), "--backend", "jax", "--backend-config", json.dumps(BACKEND)),
            *("--host", "127.0.0.1", "--port", str(self.port), "--checkpoints-base", str(self.folder / "checkpoints")),
            *("--database-url", f"sqlite:///{self.folder / 'tinker.db'}"),
        ]
        variables = {
            **os.environ,
            "VIRTUAL_ENV": str(environment),
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(environment / "compiled"),  # most of the time goes into compiling
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "HF_HUB_OFFLINE": "1",
            "UV_OFFLINE": "1",
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        until_s = time.monotonic() + START_S
        while not self._is_up():
            assert self._process.poll() is None, f"the server ended: {self.log()[-2000:]}"
            assert time.monotonic() < until_s, f"the server did not start: {self.log()[-2000:]}"
            time.sleep(0.5)

    def _is_up(self) -> bool:
        try:
            with closing(urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Server and engine, at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def requests(self, kind: str) -> list[dict[str, Any]]:
        """What arrived, in order: `forward_backward`, `optim_step`, ..."""
        with closing(sqlite3.connect(self.folder / "tinker.db")) as database:
            found = database.execute(
                "select request_data from futures where lower(request_type) = ? order by request_id", (kind,)
            )
            return [json.loads(data) for (data,) in found]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
