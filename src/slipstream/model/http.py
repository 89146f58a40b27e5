"""An HTTP endpoint of one server or several identical ones: a connection pool, and retries under one deadline.

Input: a path, a JSON body, its session, and a function that reads the answer. Output: what that function returned.
Invariants: every failure is a ModelError (Refused if the server rejected the request, NoServer if none answered at
all), or ContextOverflow if the server says that the prompt does not fit; the deadline covers all tries and the pauses
between them; requests of a session go to one server (`routes`) and name the session; cancelling closes the connection,
so that the server notices; the API key is in the request's header and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NoReturn, TypeVar

import aiohttp

from slipstream.bounded import TooLarge, whole
from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.model.routes import Routes
from slipstream.model.wire import BadBody, is_int, session_to_headers
from slipstream.types import Json

log = logging.getLogger(__name__)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

RETRIED_STATUSES = frozenset({408, 409, 425, 429})
"""And those from 500 on, whichever proxy sent them, except two."""
NEVER_SERVED_STATUSES = frozenset({501, 505})
MAX_MESSAGE_CHARS = 400
MAX_ANSWER_BYTES = 64 << 20
MAX_LOOK_BYTES = 8 << 20
"""Limits of unpacked answers: to a request, and to `get`."""
SERVER_KEEP_ALIVE_S = 5.0
"""Uvicorn's keep-alive, and so vLLM's: the server closes a connection that is idle for longer."""

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_WORDING = re.compile(
    r"maximum context length"  # OpenAI, vLLM, SGLang
    r"|longer than the (maximum model length|model's context length)"  # vLLM, SGLang
    r"|too long to fit into the model"  # vLLM
    r"|max_tokens must be at least 1, got (0|-)"  # vLLM, for a prompt that leaves no room for output
    r"|prompt is too long"  # Anthropic
    r"|exceeds? (the |your |its )?(available |maximum |model's )*context (size|window|length)"  # llama.cpp, routers
    r"|tokens \+ .max_new_tokens. must be <=",  # TGI
    re.IGNORECASE,
)
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})


class Refused(ModelError):
    """The server rejected the request, and another try would get the same answer."""


class NoServer(ModelError):
    """The last try reached no server: no connection, or one that broke."""


class TryAgain(Exception):
    """This try failed, but the next one may succeed."""

    def __init__(self, reason: str, retry_after_s: float | None = None, *, unanswered: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.unanswered = unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a request is retried, and how long the pauses are."""

    max_retries: int = 5
    backoff_s: float = 0.5
    """Maximum of the first pause; it doubles for each later one. The pause is random between zero and that."""
    backoff_cap_s: float = 30.0
    retry_after_cap_s: float = 120.0

    def pause_s(self, num_tries: int, retry_after_s: float | None, rng: random.Random) -> float:
        """The pause after `num_tries` failed tries, at least as long as the server asked for."""
        longest_s = min(self.backoff_cap_s, self.backoff_s * 2.0 ** min(num_tries - 1, 64))
        drawn_s = rng.uniform(0.0, longest_s)
        return drawn_s if retry_after_s is None else min(retry_after_s, self.retry_after_cap_s) + drawn_s


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """A Retry-After header: seconds, or a date. None if it is neither."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except (ValueError, OverflowError):
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    # NaN compares false with everything.
    return max(0.0, seconds) if seconds == seconds else None


def shortened(text: str) -> str:
    """`text` on one line, short enough for an error message."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 4] + " ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """The error that the server reported."""

    message: str
    code: str = ""

    @staticmethod
    def read(raw: bytes) -> Complaint:
        """From `{"error": {"message", "code"}}`, `{"message"}` or `{"detail"}`; otherwise the body as it is."""
        text = raw.decode("utf-8", "replace")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return Complaint(message=text)
        inner = body.get("error", body) if isinstance(body, dict) else body
        if not isinstance(inner, dict):
            return Complaint(message=inner if isinstance(inner, str) else text)
        message = inner.get("message") or inner.get("detail") or text
        codes = [code for key in ("code", "type") if isinstance(code := inner.get(key), str)]
        known = next((code for code in codes if code in _OVERFLOW_CODES), codes[0] if codes else "")
        return Complaint(message=message if isinstance(message, str) else json.dumps(message), code=known)

    def is_overflow(self, status: int) -> bool:
        worded = self.code in _OVERFLOW_CODES or _OVERFLOW_WORDING.search(self.message) is not None
        return worded and status in _OVERFLOW_STATUSES


class Endpoint:
    """The HTTP side of a client: `await endpoint.post("/completions", body, read)`.

    The HTTP session opens with the first request and belongs to the event loop of that request until `aclose`. `post`
    and `get` have one each.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        api_key: str | None = None,
        api_key_env: str = "",
        headers: Mapping[str, str] | None = None,
        concurrency: int | None = None,
        connect_timeout_s: float = 30.0,
        retries: Retries | None = None,
        rng: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`api_key_env` names a variable with the key, which is read when a session opens if there is no `api_key`.
        `headers` go with every request; a value `env:NAME` is read from that variable at the same time. `concurrency`
        limits the connections of `post`."""
        self.base_urls = tuple(url.rstrip("/") for url in base_urls)
        self._routes = Routes(self.base_urls)
        self._api_key = api_key
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._secrets: set[str] = set()
        """What must not appear in an error: the key, and headers read from the environment."""
        self._concurrency = concurrency
        self._connect_timeout_s = connect_timeout_s
        self._retries = retries or Retries()
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._posting: aiohttp.ClientSession | None = None
        self._looking: aiohttp.ClientSession | None = None
        """For `get`, so that a look at the server never waits behind slow requests."""
        self._closed = False

    async def post(
        self,
        path: str,
        body: Mapping[str, Json],
        read: Callable[[Json], T],
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> T:
        """Post `body` and return `read(answer)`.

        `read` raises BadBody for an incomplete answer, and TryAgain for one that the server aborted.
        """
        payload = json.dumps(body).encode()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        last, where = "the first try got no answer", self.base_urls[0]
        error: type[ModelError] = ModelError
        num_tries = 0
        try:
            async with asyncio.timeout_at(deadline) as scope:
                while True:
                    num_tries += 1
                    where = self._routes.home(session, loop.time())
                    try:
                        return read(await self._answer(where, path, payload, session_to_headers(session)))
                    except TryAgain as again:
                        last, asked_s = str(again), again.retry_after_s
                        error = NoServer if again.unanswered else ModelError
                        if again.unanswered:
                            self._routes.avoid(where, loop.time())
                    except BadBody as bad:
                        last = self._scrubbed(f"POST {path} of {where} answered with a body that {bad}")
                        error = Refused
                        break
                    if num_tries > self._retries.max_retries:
                        last = f"{last}; gave up after {num_tries} tries"
                        break
                    pause_s = self._retries.pause_s(num_tries, asked_s, self._rng)
                    if deadline is not None and loop.time() + pause_s >= deadline:
                        last = f"{last}; the next try would be after the deadline of {timeout_s:g} s"
                        break
                    log.info("%s; try %d in %.1f s", last, num_tries + 1, pause_s)
                    await self._sleep(pause_s)
        except TimeoutError:
            if not scope.expired():
                raise
            last = f"POST {path} of {where} took longer than {timeout_s:g} s ({num_tries} tries; {last})"
        # Raised here, so that its context is no exception of aiohttp: those contain the request's headers.
        raise error(last)

    async def get(self, url: str, *, timeout_s: float) -> tuple[int, str]:
        """One try at `url`: its status and text. Raises ModelError if there was no answer."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._looking is None:
                    self._looking = self._open(limit=None)
                async with self._looking.get(url, allow_redirects=False) as response:
                    body = await whole(response.content.iter_any(), MAX_LOOK_BYTES, "the answer")
                    return response.status, body.decode("utf-8", "replace")
        except TimeoutError:
            reason = f"no answer within {timeout_s:g} s"
        except TooLarge as raised:
            reason = str(raised)
        except (aiohttp.ClientError, OSError) as raised:
            reason = self._scrubbed(_reason(raised))
        raise ModelError(f"GET {url}: {reason}")

    async def is_there(self, *, timeout_s: float) -> bool:
        """Whether any server answers at all."""

        async def answers(url: str) -> bool:
            try:
                await self.get(f"{url}/models", timeout_s=timeout_s)
            except ModelError:
                return False
            return True

        return any(await asyncio.gather(*map(answers, self.base_urls)))

    def end_session(self, session: str) -> None:
        self._routes.forget(session)

    async def aclose(self) -> None:
        self._closed = True
        sessions = [session for session in (self._posting, self._looking) if session is not None]
        self._posting = self._looking = None
        await asyncio.shield(asyncio.gather(*(session.close() for session in sessions)))

    async def _answer(self, where: str, path: str, payload: bytes, headers: Mapping[str, str]) -> Json:
        """One try: the JSON of a good answer. Raises TryAgain, or an error that another try would repeat."""
        failure: str | None = None
        try:
            if self._posting is None:
                self._posting = self._open(limit=self._concurrency)
            async with self._posting.post(
                where + path, data=payload, headers=headers, allow_redirects=False
            ) as response:
                raw = await whole(response.content.iter_any(), MAX_ANSWER_BYTES, "the answer")
        except TooLarge as raised:
            raise Refused(f"POST {path} of {where}: {raised}") from None
        except (aiohttp.ClientError, OSError) as raised:
            failure = self._scrubbed(_reason(raised))
        if failure is not None:
            raise TryAgain(f"POST {path} of {where} failed: {failure}", unanswered=True)
        answered = f"POST {path} of {where} answered"
        asked_s = retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC))
        if response.status != 200:
            self._refuse(f"{answered} {response.status}", response.status, Complaint.read(raw), asked_s)
        try:
            answer: Json = json.loads(raw)
        except (ValueError, RecursionError):
            start = self._scrubbed(raw[:200].decode("utf-8", "replace"))
            raise TryAgain(f"{answered} with a body that is not JSON: {start!r}", asked_s) from None
        if isinstance(answer, dict) and answer.get("error") and not answer.get("choices"):
            self._refuse(f"{answered} with an error", _inner_status(answer["error"]), Complaint.read(raw), asked_s)
        return answer

    def _refuse(self, answered: str, status: int, complaint: Complaint, asked_s: float | None) -> NoReturn:
        message = f"{answered}: {self._scrubbed(complaint.message)}"
        if complaint.is_overflow(status):
            raise ContextOverflow(message)
        if _may_pass(status) and complaint.code != "insufficient_quota":
            raise TryAgain(message, asked_s)
        if status in (401, 403):
            message += f" (set {self._api_key_env or 'the API key'} to a key that this endpoint accepts)"
        raise Refused(message)

    def _open(self, *, limit: int | None) -> aiohttp.ClientSession:
        if self._closed:
            raise ModelError(f"the client of {', '.join(self.base_urls)} is closed; create a new one")
        if self._api_key is None and self._api_key_env:
            self._api_key = os.environ.get(self._api_key_env)
        self._api_key = (self._api_key or "").strip()
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise ConfigError(
                f"the API key for {', '.join(self.base_urls)} has characters that no header can hold; copy it again"
            )
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            self._secrets.add(self._api_key)
            headers["Authorization"] = f"Bearer {self._api_key}"
        headers |= {name: self._header(name, value) for name, value in self._headers.items()}
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limit or 0, limit_per_host=0, keepalive_timeout=SERVER_KEEP_ALIVE_S - 1.0
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            headers=headers,
        )

    def _scrubbed(self, text: str) -> str:
        """Without the key, which servers often repeat in their error messages."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return shortened(text)

    def _header(self, name: str, value: str) -> str:
        variable = value.removeprefix("env:") if value.startswith("env:") else None
        if variable is not None:
            value = os.environ.get(variable, "").strip()
            if not value:
                raise ConfigError(f"the header {name} is read from {variable}, which is not set: set it")
            self._secrets.add(value)
        if not (name and name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
            raise ConfigError(f"the header {name!r} has characters that no header can hold: use plain ASCII")
        return value


def _may_pass(status: int) -> bool:
    return status in RETRIED_STATUSES or (status >= 500 and status not in NEVER_SERVED_STATUSES)


def _inner_status(error: Json) -> int:
    """The status of an error inside an answer with status 200, which routers send when their server failed."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if is_int(code) and 400 <= code < 600 else 500


def _reason(raised: BaseException) -> str:
    return f"{type(raised).__name__}: {raised}" if str(raised) else type(raised).__name__
