"""The encyclopedia as a web site: a real HTTP server on this machine, in a thread.

Several runs may serve the same site at the same address: each listens there, and whoever is left answers. So a run that
is resumed finds its pages where they were.
"""

from __future__ import annotations

import socket
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import slipstream as ss
from slipstream.recipes.research.world import Entry, World

HOST, PORT = "127.0.0.1", 8731
_MENU = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("home", "random", "about", "contact", "donate"))


class Site:
    def __init__(self, port: int) -> None:
        self.pages: dict[str, bytes] = {}
        self.num_requests = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # http.server's name
                site.num_requests += 1
                page = site.pages.get(self.path)
                body = page if page is not None else b"<html><body><p>There is no such page.</p></body></html>"
                self.send_response(200 if page is not None else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not logged."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def server_bind(self) -> None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                super().server_bind()

        try:
            self._server = Server((HOST, port), Handler)
        except OSError as raised:
            raise ss.ConfigError(
                f"port {port} of this machine cannot be served ({raised.strerror}): choose another with "
                "tasks.args.port=NUMBER"
            ) from raised
        threading.Thread(target=self._server.serve_forever, name="slipstream-site", daemon=True).start()

    def add(self, world: World, *, seed: int) -> None:
        for entry in world.entries:
            self.pages[path_of(entry, seed=seed)] = _html(entry, seed=seed)


_sites: dict[int, Site] = {}


def serve(world: World, *, seed: int, port: int) -> Site:
    """Serve the pages of a world at a port of this machine, for as long as this process runs."""
    site = site_at(port)
    site.add(world, seed=seed)
    return site


def site_at(port: int) -> Site:
    """The site of this process at a port, which is started if there is none."""
    if port not in _sites:
        _sites[port] = Site(port)
    return _sites[port]


def url_of(entry: Entry, *, seed: int, port: int) -> str:
    return f"http://{HOST}:{port}{path_of(entry, seed=seed)}"


def path_of(entry: Entry, *, seed: int) -> str:
    return f"/{seed}/{entry.slug}"


def _html(entry: Entry, *, seed: int) -> bytes:
    body = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in entry.body)
    links = "".join(f'<li><a href="/{seed}/{link}">{link}</a></li>' for link in entry.links)
    return (
        f"<!DOCTYPE html><html><head><title>{escape(entry.title)}</title><script>track();</script></head><body>"
        f"<nav><ul>{_MENU}</ul></nav><main><article><h1>{escape(entry.title)}</h1>{body}<ul>{links}</ul></article></main>"
        "<footer>All names are invented.</footer></body></html>"
    ).encode()
