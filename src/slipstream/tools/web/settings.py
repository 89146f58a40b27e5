"""How pages are opened: the key `pages` of a task's resources.

resources={"pages": {"summarise": "none", "blocked": ["huggingface.co"], "max_pages": 20}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.errors import ConfigError
from slipstream.types import Json


class PageSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    summarise: Literal["model", "none"] = "model"
    """`model`: a model reads the page and reports what serves the goal. `none`: the agent reads the page itself."""
    base: str = ""
    """The address that others are relative to: with `http://127.0.0.1:8731/wiki/` an agent may open `paris`."""
    base_url: str = ""
    """Of an OpenAI-compatible server that summarises; empty: the run's own model."""
    model: str = ""
    """The summariser's name on that server."""
    api_key_env: str = "OPENAI_API_KEY"
    """The variable that holds that server's key."""
    chunk_chars: int = Field(default=12_000, ge=200)
    """A longer page is summarised in parts, all at once."""
    max_chunks: int = Field(default=8, ge=1)
    """Parts that are read of a page; those that share most words with the goal."""
    summary_tokens: int = Field(default=512, ge=16)
    """Of each part's summary."""
    text_chars: int = Field(default=12_000, ge=100)
    """What an agent sees of a page that is not summarised."""
    max_page_bytes: int = Field(default=4 << 20, ge=1_000)
    """Of a longer page only the beginning is read."""
    page_timeout_s: float = Field(default=30.0, gt=0)
    """Of one page, its redirects included."""
    max_redirects: int = Field(default=8, ge=0)
    max_pages: int = Field(default=0, ge=0)
    """Calls of one rollout; 0: as many as it likes."""
    max_bytes: int = Field(default=0, ge=0)
    """Bytes fetched for one rollout; 0: as many as it likes."""
    max_seconds: float = Field(default=0.0, ge=0)
    """Time spent on fetching for one rollout; 0: as long as it likes."""
    blocked: tuple[str, ...] = ()
    """Sites on which the answer could be looked up: `example.com`, which includes its subdomains, or
    `example.com/folder`."""
    blocked_phrases: tuple[str, ...] = ()
    """A page that contains one of these is not shown: a canary, or the question itself."""
    private_hosts: tuple[str, ...] = ()
    """Hosts, as `host` or `host:port`, that may have an address of a private network. All others are refused."""
    cache: str = ""
    """A file that keeps pages between runs; empty: none."""
    cache_mb: int = Field(default=1_024, ge=1)
    cache_days: float = Field(default=30.0, gt=0)
    """A page that was kept for longer is fetched again."""


def read_settings(resources: Mapping[str, Json]) -> PageSettings:
    try:
        return PageSettings.model_validate(resources.get("pages") or {})
    except ValidationError as raised:
        first = raised.errors()[0]
        raise ConfigError(f'resources "pages", key "{".".join(map(str, first["loc"]))}": {first["msg"]}') from None
