"""vLLM on the CPU, as a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from slipstream.model.openai import LogprobsKind, OpenAIConfig

START_S = 600.0
"""On two cores that do nothing else it is up in half a minute."""
NUM_BLOCKS, BLOCK_TOKENS = 33, 32
"""A small cache: half a dozen rollouts fill it. A CPU takes no smaller blocks."""
WINDOW_TOKENS = 1_024


class Server:
    """Serves the model in a folder under the folder's name. It can be killed and started again on the same port."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        """`options` are added to the command; the server's output goes into `folder`."""
        self.model = model
        self.options = options
        self._log = folder / "vllm.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.base_url = f"{self.url}/v1"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(str(Path(sys.prefix) / "bin" / "vllm"), "serve", str(self.model), "--served-model-name", self.model.name),
            *("--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", str(WINDOW_TOKENS)),
            *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(NUM_BLOCKS)),
            *("--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--chat-template", str(self.model / "template.jinja")),
            *("--dtype", "float32", "--enforce-eager", "--distributed-executor-backend", "uni"),
            *self.options,
        ]
        variables = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # the model is tiny
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork",  # most of a start is imports, which are then done once
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        until_s = time.monotonic() + START_S
        while not self._is_up():
            assert self._process.poll() is None, f"the server ended: {self.log()[-3000:]}"
            assert time.monotonic() < until_s, f"the server did not start: {self.log()[-3000:]}"
            time.sleep(0.5)

    def _is_up(self) -> bool:
        try:
            with closing(urllib.request.urlopen(f"{self.url}/health", timeout=5)) as answer:
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
        return self._log.read_text(errors="replace")

    def count(self, name: str) -> float:
        """A counter of its metrics, summed over all labels: `count("num_preemptions")`."""
        with closing(urllib.request.urlopen(f"{self.url}/metrics", timeout=10)) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^vllm:{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE))

    def config(self, *others: "Server", logprobs: LogprobsKind = LogprobsKind.PROCESSED) -> OpenAIConfig:
        """For a client of this server, and of others that serve the same."""
        urls = ",".join(server.base_url for server in (self, *others))
        return OpenAIConfig(base_url=urls, model="", api_key_env="", logprobs=logprobs)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
