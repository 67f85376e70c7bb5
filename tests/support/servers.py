"""Servers on this machine that answer as W&B's and the hub's may: well, never, with an error, or no longer."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """What a server does from now on: the `status` of each answer, and no answer while it is `silent`.

    `asked` has the paths of all calls, and `answered` those of the calls that it answered. A silent server answers when
    the block ends: a client that ends before has not waited for it, however slow the machine is.
    """

    def __init__(self) -> None:
        self.silent, self.status, self.over = False, 200, threading.Event()
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.headers: dict[str, str] = {}
        self.url = ""

    def body(self, path: str, question: bytes) -> Any:
        """The JSON of an answer."""
        return {}


class Wandb(Server):
    """As much of W&B's server as a run needs to be opened, fed and closed."""

    def body(self, path: str, question: bytes) -> Any:
        """What its GraphQL and its stream of files say."""
        text = question.decode(errors="replace")
        if "upsertBucket" in text or "UpsertBucket" in text:
            name = re.search(r'"name"\s*:\s*"([^"]+)"', text)
            project = {"id": "p", "name": "evalkit", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": name[1] if name else "r", "displayName": "r", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "viewer" in text:
            viewer = {"id": "v", "entity": "me", "username": "me", "email": "me@example.org", "flags": "{}"}
            return {"data": {"viewer": {**viewer, "teams": {"edges": []}}, "serverInfo": {"features": []}}}
        if "createRunFiles" in text:
            return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}}
        if "file_stream" in path:
            return {"exitcode": None, "limits": {}}
        return {"data": {}}


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server, reachable at its `url`, until the block ends or it is `killed`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            question = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if server.silent:
                server.over.wait()
            server.answered.append(self.path)
            content = json.dumps(server.body(self.path, question)).encode()
            self.send_response(server.status)
            for name, value in {**server.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_POST = do_PUT = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            return

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    with Quiet(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{listening.server_port}"
        server.kill = lambda: (listening.shutdown(), listening.socket.close())  # type: ignore[attr-defined]
        try:
            yield server
        finally:
            server.over.set()
            listening.shutdown()
