"""A server of files on this machine."""

import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `pages`, path -> content; `cut` bytes of each go missing on the way,
    `slow` seconds pass at each.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, bytes] = {}
        self.cut = 0
        self.slow = 0.0
        self.requests: list[str] = []

    def url(self, folder: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{folder}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        content = self.server.pages.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):  # whoever downloads may have had enough
            for byte in (
                content[: len(content) - self.server.cut] if self.server.slow else ()
            ):
                self.wfile.write(bytes([byte]))
                time.sleep(self.server.slow)
        if not self.server.slow:
            self.wfile.write(content[: len(content) - self.server.cut])

    def log_message(self, format: str, *args: object) -> None:
        pass
