"""Who may look at the desk: whoever got its address from the terminal, in one browser, from this machine.

The address holds a token that opens the desk once and sets a cookie. Every request must name 127.0.0.1 or localhost as
its host, so that a page of a stranger whose name was pointed at this machine (DNS rebinding) is refused. Whatever
changes something carries a second secret in its form and must come from the desk's own pages. The pages may load
nothing from elsewhere and run no script but the desk's own file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""For the desk's own pages: its own files and nothing else, no inline script and no inline style."""

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-same-origin; frame-ancestors 'self'"
"""For reports, which bring their style with them and need no script at all."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
LARGEST_FORM = 64_000
CSRF_FIELD = "csrf"


@dataclass
class DeskSecrets:
    """The secrets of one desk, made again at each start."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used: bool = False

    @property
    def address(self) -> str:
        """What the officer opens, once."""
        return f"http://127.0.0.1:{self.port}/enter?token={self.token}"

    @property
    def cookie(self) -> str:
        return f"privfair-desk-{self.port}"

    @property
    def csrf(self) -> str:
        return hmac.new(self.session.encode(), b"csrf", hashlib.sha256).hexdigest()

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost"))

    def enter(self, token: str) -> Response:
        """The answer to a browser with an address: in, with a cookie, if it is the right one and not used up."""
        if self.used or not _same(token, self.token):
            why = "This address was used already." if self.used else "The token in this address is not the desk's."
            return refusal(f"{why} Start the desk again and open the address that it prints.")
        self.used = True
        inside = RedirectResponse("/", status_code=303)
        inside.set_cookie(self.cookie, self.session, httponly=True, samesite="strict", path="/")
        return inside

    def why_not(self, headers: Headers) -> str | None:
        """Why a request is refused, or None."""
        if headers.get("host", "") not in self.hosts:
            return "The desk answers only to 127.0.0.1 and localhost."
        return None

    def known(self, headers: Headers) -> bool:
        given = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        return _same(given, self.session)

    async def form(self, request: Request) -> dict[str, str] | Response:
        """The fields of a form of the desk's pages, or the refusal."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.hosts}:
            return refusal("This form was sent from a page that is not the desk's.")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_FORM:
                return refusal("The form is larger than the desk reads.", 413)
        given = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if not _same(given.pop(CSRF_FIELD, ""), self.csrf):
            return refusal("This form does not carry the desk's secret. Open the page again and send it from there.")
        return given


def _same(given: str, right: str) -> bool:
    return secrets.compare_digest(given.encode(), right.encode())


def refusal(why: str, status: int = 403) -> Response:
    """A page that says no; `why` is always one of our sentences."""
    text = f"<!doctype html><html lang=en><title>Refused</title><main><h1>Refused</h1><p>{why}</p></main></html>"
    return HTMLResponse(text, status_code=status)


class Guarded:
    """Checked before every page of the desk."""

    def __init__(self, app: ASGIApp, access: DeskSecrets) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", POLICY)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Headers(scope=scope)
        why = self.access.why_not(headers)
        answer: ASGIApp
        if why is not None:
            answer = refusal(why)
        elif scope["path"] == "/enter":
            answer = self.access.enter(Request(scope).query_params.get("token", ""))
        elif not self.access.known(headers):
            answer = refusal("Open the desk by the address that the terminal printed.")
        else:
            answer = self.app
        await answer(scope, receive, send_guarded)
