"""The page and what it asks, over HTTP: Starlette and uvicorn."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.optional_imports import needing
from torchcaps.whole import parsed_json
from torchcaps_lab.explore.explorer import Explorer
from torchcaps_lab.report.exhibit import plain

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MOST_BYTES = 8 << 20
"""Of an upload, and of any other request."""

MOST_AT_ONCE = 8 * MOST_BYTES
"""Of all requests that are answered at one time."""

MOST_SECONDS = 60
"""In which a request must have been sent: until then it counts among those."""

THREADS = 2
"""How many requests are computed at one time; others wait, without a thread. Networks
are asked one at a time in any case, and the page is read in threads of its own.
"""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")

_ALL = ("", "0.0.0.0", "::")  # addresses to listen at that are those of no machine

_PAGE = Path(__file__).parent / "page"

_GET = (
    "networks",
    "network",
    "sample",
    "pose",
    "assignments",
    "routing",
    "compare",
    "swap",
)
_POST = ("look", "read", "decode")

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def application(
    explorer: Explorer, hosts: tuple[str, ...] = LOOPBACK, token: str | None = None
) -> "Starlette":
    """Return the page as an ASGI application.

    Its answers are JSON. What a request has wrong is told as ``{"error": ...}`` with
    status 400; a body of more than :data:`MOST_BYTES` is not read to its end, status
    413, and none while all together have more than :data:`MOST_AT_ONCE`, status 503. A
    sender who takes more than :data:`MOST_SECONDS` is waited for no longer, status 408.
    What the page of another site or port asks, as browsers say (``Sec-Fetch-Site``,
    ``Origin``), is refused, status 403. Nothing is written, and no code is executed.

    Args:
        explorer: the networks.
        hosts: names that this server may be called by: other sites then cannot reach it
            through a name of theirs. ``("*",)`` allows any.
        token: what a browser must know: the page is opened with ``?token=...``, and a
            cookie keeps it. Without it every answer has status 401. None: nobody is
            asked.
    """
    with needing("pages for a browser", "torchcaps-lab[explore]"):
        from anyio import CapacityLimiter
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Mount, Route
        from starlette.staticfiles import StaticFiles

    calls = _Calls(explorer)
    uploads = _Uploads()
    threads = CapacityLimiter(THREADS)
    methods = dict.fromkeys(_GET, "GET") | dict.fromkeys(_POST, "POST")
    api = [
        Route(
            f"/api/{name}",
            _answering(getattr(calls, name), uploads, threads),
            methods=[method],
        )
        for name, method in methods.items()
    ]
    page = Mount("/", StaticFiles(directory=_PAGE, html=True))
    guard = Middleware(
        TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False
    )
    return Starlette(
        routes=[*api, page], middleware=[guard, Middleware(_Guarded, token=token)]
    )


def _text_in(query: dict[str, str], name: str) -> str:
    if name not in query:
        raise ValueError(f"{name} is missing")
    return query[name]


def _number_in(query: dict[str, str], name: str) -> int:
    text = _text_in(query, name)
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


def _look_in(query: dict[str, str]) -> tuple[str, int]:
    """A look, and the class that it is asked about."""
    return _text_in(query, "look"), _number_in(query, "target")


class _Calls:
    """What each address answers: from the body and the query to plain data."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer

    def networks(self, body: bytes, query: dict[str, str]) -> Any:
        return self.explorer.networks()

    def network(self, body: bytes, query: dict[str, str]) -> Any:
        return self.explorer.network(_text_in(query, "name"))

    def pose(self, body: bytes, query: dict[str, str]) -> Any:
        return self.explorer.pose(*_look_in(query))

    def assignments(self, body: bytes, query: dict[str, str]) -> Any:
        return self.explorer.assignments(*_look_in(query))

    def routing(self, body: bytes, query: dict[str, str]) -> Any:
        return self.explorer.routing(_text_in(query, "look"))

    def swap(self, body: bytes, query: dict[str, str]) -> Any:
        return self.explorer.swap(
            *_look_in(query),
            _text_in(query, "other"),
            _number_in(query, "other_target"),
        )

    def look(self, body: bytes, query: dict[str, str]) -> Any:
        return self._answer_to(
            self.explorer.look(
                _text_in(query, "network"), body, query.get("name", "the picture")
            ),
            query,
        )

    def read(self, body: bytes, query: dict[str, str]) -> Any:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"a text must be UTF-8: {error}") from error
        return self._answer_to(
            self.explorer.read(_text_in(query, "network"), text), query
        )

    def sample(self, body: bytes, query: dict[str, str]) -> Any:
        label = _number_in(query, "class") if "class" in query else None
        number = _number_in(query, "number")
        return self._answer_to(
            self.explorer.sample(_text_in(query, "network"), label, number), query
        )

    def _answer_to(self, look: str, query: dict[str, str]) -> Any:
        if "instead" in query:
            self.explorer.forget(query["instead"])
        answer = self.explorer.answer(look)
        if not self.explorer.has_poses(look):
            return answer
        if "target" not in query:
            target = answer["activations"]["predicted"]
        else:
            target = _number_in(query, "target")
        return {**answer, "pose": self.explorer.pose(look, target)}

    def decode(self, body: bytes, query: dict[str, str]) -> Any:
        try:
            pose = [float(number) for number in parsed_json(body, list)]
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"pose must be a list of numbers: {error}") from error
        target = _number_in(query, "target") if "target" in query else None
        return self.explorer.decode(_text_in(query, "look"), pose, target)

    def compare(self, body: bytes, query: dict[str, str]) -> Any:
        steps = _number_in(query, "steps") if query.get("steps") else None
        routing = query.get("routing") or None
        return self.explorer.compare(*_look_in(query), routing, steps)


class _Uploads:
    """The bodies of the requests that are answered at one time.

    Attributes:
        held: bytes of all of them.
    """

    def __init__(self) -> None:
        self.held = 0

    @asynccontextmanager
    async def body(self, request: "Request") -> AsyncIterator[bytes]:
        """What was sent, which counts until the end of the block.

        Raises:
            _Refused: it is too much or comes too slowly, and its rest is left unread,
                or the sender hung up.
        """
        body = bytearray()
        try:
            await self._read(request, body)
            yield bytes(body)
        finally:
            self.held -= len(body)

    async def _read(self, request: "Request", body: bytearray) -> None:
        from anyio import fail_after
        from starlette.requests import ClientDisconnect

        try:
            with fail_after(MOST_SECONDS):
                async for part in request.stream():
                    body += part
                    self.held += len(part)
                    if len(body) > MOST_BYTES:
                        raise _Refused(
                            413, f"more than {MOST_BYTES >> 20} MB are not taken"
                        )
                    if self.held > MOST_AT_ONCE:
                        raise _Refused(503, "others upload, too: try again")
        except ClientDisconnect:
            raise _Refused(400, "the upload was broken off") from None
        except TimeoutError:
            raise _Refused(
                408, f"the upload was not there after {MOST_SECONDS} seconds"
            ) from None


class _Refused(Exception):
    """The body of a request is not taken: a status and the reason."""


def _answering(
    answer: "Callable[[bytes, dict[str, str]], Any]",
    uploads: _Uploads,
    threads: "CapacityLimiter",
) -> "Callable[[Request], Awaitable[Response]]":
    """An address that computes in one of some threads, so that the page itself is
    always served.
    """
    from anyio import to_thread

    async def endpoint(request: "Request") -> "Response":
        if _is_of_another_page(request):
            return _json(
                {"error": "pages of other sites and ports are not answered"}, 403
            )
        try:
            async with uploads.body(request) as body:
                query = dict(request.query_params)
                return _json(
                    await to_thread.run_sync(answer, body, query, limiter=threads)
                )
        except _Refused as refused:
            status, error = refused.args
            return _json({"error": error}, status)
        except (ValueError, RuntimeError, OSError) as error:
            return _json({"error": str(error)}, 400)

    return endpoint


def _json(content: Any, status: int = 200) -> "Response":
    """An answer. Names of classes and files may hold bytes that are no text, which are
    escaped.
    """
    from starlette.responses import JSONResponse

    return JSONResponse(plain(content), status)


def _is_of_another_page(request: "Request") -> bool:
    """Whether the page of another site or port asks. At addresses without TLS browsers
    send but the second header.
    """
    # The latter: of another port.
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return True
    origin = request.headers.get("origin")
    host = request.headers.get("host")
    return origin not in (None, f"http://{host}", f"https://{host}")


class _Guarded:
    """Asks for the token, and puts headers on every answer: that the page loads nothing
    from elsewhere, and is shown in no other page.
    """

    def __init__(self, app: Any, token: str | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope)
        # Browsers send those of all ports of a machine
        cookie = f"torchcaps-{scope['server'][1]}"
        named = request.query_params.get("token")
        sent_token = request.cookies.get(cookie) if named is None else named
        allowed = self.token is None or secrets.compare_digest(
            (sent_token or "").encode(), self.token.encode()
        )

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if allowed and named is not None:
                    headers.append(
                        "Set-Cookie",
                        f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict",
                    )
            await send(message)

        refusal = PlainTextResponse(
            "open the address that torchcaps explore has printed, with its token", 401
        )
        return await (self.app if allowed else refusal)(scope, receive, with_headers)


def serve(
    explorer: Explorer,
    host: str = "127.0.0.1",
    port: int = 8765,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the page until it is interrupted.

    Args:
        explorer: the networks.
        host: the address to listen at; any but a loopback one lets other machines in,
            and those who know a token, which is made for this server.
        port: 0 takes one that is free.
        ready: is told the address of the page, with the token, once it is there.

    Raises:
        OSError: if the address cannot be listened at.
    """
    import socket
    from threading import Thread

    with needing("pages for a browser", "torchcaps-lab[explore]"):
        import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # All addresses are those of IPv4 too, which the name of a machine may stand for.
    both = host == "::" and socket.has_dualstack_ipv6()
    with socket.create_server(
        (host, port), family=family, dualstack_ipv6=both
    ) as listening:
        token = None if host in LOOPBACK else secrets.token_urlsafe()
        if host in _ALL:
            name = socket.gethostname()
        else:
            name = f"[{host}]" if ":" in host else host
        app = application(
            explorer,
            LOOPBACK if token is None else ("*",) if host in _ALL else (name,),
            token,
        )
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
        )
        Thread(target=explorer.warm_up, daemon=True).start()
        if ready is not None:
            ready(
                f"http://{name}:{listening.getsockname()[1]}"
                + (f"/?token={token}" if token else "")
            )
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
