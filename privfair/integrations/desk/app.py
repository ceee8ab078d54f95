"""The pages of the desk, and the server that shows them on this machine alone."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from audit.report.figures import draw_figures
from audit.report.page import power_of_ten, render
from calibrate.choose import QUESTIONS, Fair, Need, Observer, choose
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.document import Issuer, LedgerBinding
from calibrate.manifest.issue import request_bytes
from calibrate.manifest.keys import SigningKey
from calibrate.manifest.mechanism import instant_to_text
from calibrate.manifest.show import plain_words
from calibrate.manifest.trust import TrustFile
from calibrate.privacy_unit import Protected
from privfair.integrations.desk import planner
from privfair.integrations.desk.access import REPORT_POLICY, DeskSecrets, Guarded
from privfair.integrations.desk.books import open_books
from privfair.integrations.desk.papers import (
    Known,
    Runs,
    decline_letter,
    drafting,
    drop_letter,
    open_inbox,
    open_runs,
    sign_letter,
)
from privfair.integrations.desk.planner import PlannerSetting
from privfair.ledger.claim import unit_in_words
from privfair.plan.plan import plan_from_flags

_HERE = Path(__file__).parent
_STATIC = {"desk.css": "text/css", "desk.js": "text/javascript", "icon.svg": "image/svg+xml"}
Page = Callable[["Desk", Request], Awaitable[Response]]


@dataclass(frozen=True)
class DeskPapers:
    """What lies on the desk: the ledger, the inbox, the runs, and the key if the officer put it there."""

    ledger: str
    inbox: Path
    runs: tuple[Path, ...] = ()
    key: SigningKey | None = None
    trust: TrustFile | None = None

    @property
    def known(self) -> Known:
        """Whose signatures count."""
        return Known(self.key, self.trust)


def _sentences(page: Page) -> Page:
    """A deliberate error becomes a page that says it, with the status of its kind."""

    @wraps(page)
    async def shown(desk: Desk, request: Request) -> Response:
        try:
            return await page(desk, request)
        except PrivfairError as error:
            return desk.page("error.html.j2", {"error": str(error)}, 400 if error.exit_code == 2 else 409)
        except ModuleNotFoundError as missing:
            text = f"This page needs {missing.name}, which is not installed: pip install 'privfair[train]'."
            return desk.page("error.html.j2", {"error": text}, 409)

    return shown


class Desk:
    """The pages, each a method; what they show is read again for every request."""

    def __init__(self, papers: DeskPapers, access: DeskSecrets) -> None:
        self.papers = papers
        self.access = access
        self.templates = Environment(
            loader=PackageLoader("privfair.integrations.desk"), autoescape=True, undefined=StrictUndefined
        )
        self.templates.filters |= {
            "instant": instant_to_text,
            "power_of_ten": power_of_ten,
            "unit_in_words": unit_in_words,
        }

    def application(self) -> Starlette:
        """The application to serve; every request passes the guard first."""
        pages: tuple[tuple[str, Page, str], ...] = (
            ("/", Desk.home, "GET"),
            ("/chooser", Desk.choose, "GET"),
            ("/planner", Desk.plan, "GET"),
            ("/planner/answer", Desk.plan_answer, "GET"),
            ("/planner/curves", Desk.plan_curves, "GET"),
            ("/planner/request", Desk.plan_request, "POST"),
            ("/requests", Desk.requests, "GET"),
            ("/requests/{name}", Desk.request, "GET"),
            ("/requests/{name}/sign", Desk.sign, "POST"),
            ("/requests/{name}/decline", Desk.decline, "POST"),
            ("/requests/{name}/answer", Desk.answer, "GET"),
            ("/ledger", Desk.ledger, "GET"),
            ("/runs", Desk.runs, "GET"),
            ("/runs/{name}/report", Desk.report, "GET"),
            ("/compare", Desk.compare, "GET"),
            ("/static/{name}", Desk.static, "GET"),
            ("/favicon.ico", Desk.icon, "GET"),
        )
        routes = [Route(path, self._endpoint(_sentences(page)), methods=[method]) for path, page, method in pages]
        return Starlette(routes=routes, middleware=[Middleware(Guarded, access=self.access)])

    def _endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await page(self, request)

        return endpoint

    def page(self, template: str, shown: Mapping[str, object], status: int = 200) -> Response:
        """A page of the desk; the template escapes whatever it is given."""
        known = {"csrf": self.access.csrf, "may_sign": self.papers.key is not None}
        return HTMLResponse(self.templates.get_template(template).render(known | dict(shown)), status_code=status)

    async def home(self, request: Request) -> Response:
        inbox = await run_in_threadpool(open_inbox, self.papers.inbox, self.papers.known)
        waiting = sum(one.state.value == "waiting" for one in inbox.letters)
        return self.page("home.html.j2", {"papers": self.papers, "waiting": waiting})

    async def choose(self, request: Request) -> Response:
        return self.page("chooser.html.j2", _chosen(request.query_params))

    async def plan(self, request: Request) -> Response:
        setting = PlannerSetting.from_query(request.query_params)
        asked = {
            "setting": setting,
            "algorithms": planner.algorithms(),
            "common": planner.COMMON,
            "further": planner.further_fields(setting.algorithm),
        }
        answered = await run_in_threadpool(_answered, setting)
        return self.page("planner.html.j2", {**asked, **answered, **await run_in_threadpool(_drawn, setting)})

    async def plan_answer(self, request: Request) -> Response:
        setting = PlannerSetting.from_query(request.query_params)
        return self.page("answer.html.j2", await run_in_threadpool(_answered, setting))

    async def plan_curves(self, request: Request) -> Response:
        setting = PlannerSetting.from_query(request.query_params)
        return self.page("curves.html.j2", await run_in_threadpool(_drawn, setting))

    async def plan_request(self, request: Request) -> Response:
        form = await self.access.form(request)
        if isinstance(form, Response):
            return form
        setting, why = PlannerSetting.from_query(form), " ".join(form.get("why", "").split())
        if not why:
            raise InvalidInput("purpose", why, "is needed: it is what the officer signs", "say what the model is for")
        content = await run_in_threadpool(self._asked, setting, why, form.get("by", ""))
        if self.papers.key is None:
            headers = {"Content-Disposition": 'attachment; filename="request.json"'}
            return Response(content, media_type="application/json", headers=headers)
        path = drop_letter(self.papers.inbox, f"planned-{setting.algorithm.value}", content)
        return RedirectResponse(f"/requests/{path.name}", status_code=303)

    def _asked(self, setting: PlannerSetting, why: str, asked_by: str) -> bytes:
        """The request for a setting, bound to this ledger; data are declared by the names and sizes of sites alone."""
        bound = LedgerBinding(ledger=open_books(self.papers.ledger).status.ledger)
        file = plan_from_flags(setting.algorithm.value, None, setting.parameters())
        drafted = drafting().draft(file, Issuer(setting.silos(), (bound,), why=why), target=setting.target())
        return request_bytes(drafted, asked_by.strip() or "the planner of this desk")

    async def requests(self, request: Request) -> Response:
        return self.page(
            "requests.html.j2", {"inbox": await run_in_threadpool(open_inbox, self.papers.inbox, self.papers.known)}
        )

    async def request(self, request: Request) -> Response:
        inbox = await run_in_threadpool(open_inbox, self.papers.inbox, self.papers.known)
        letter = inbox.letter(request.path_params["name"])
        words = plain_words(letter.request.document)
        known: tuple[str, ...] = ()
        try:
            known = (await run_in_threadpool(open_books, self.papers.ledger)).status.compare(letter.request.document)
        except PrivfairError as refused:
            known = (f"REFUSED: {refused}.",)
        shown = {"letter": letter, "words": words, "changes": letter.changes(), "known": known}
        return self.page("request.html.j2", shown)

    async def sign(self, request: Request) -> Response:
        return await self._answer_letter(request, signed=True)

    async def decline(self, request: Request) -> Response:
        return await self._answer_letter(request, signed=False)

    async def _answer_letter(self, request: Request, *, signed: bool) -> Response:
        form = await self.access.form(request)
        if isinstance(form, Response):
            return form
        key = self.papers.key
        if key is None:
            raise InvalidInput("--key", None, "is needed: this desk is read-only", "start it with --key to sign")
        inbox = await run_in_threadpool(open_inbox, self.papers.inbox, self.papers.known)
        letter = inbox.letter(request.path_params["name"])
        if form.get("digest") != letter.request.digest:
            raise InvalidInput("request", letter.name, "is not the one that you read", "read it again, then answer")
        if signed:
            await run_in_threadpool(sign_letter, letter, key, open_books(self.papers.ledger).status)
        else:
            await run_in_threadpool(decline_letter, letter, form.get("reason", ""), key)
        return RedirectResponse(f"/requests/{letter.name}", status_code=303)

    async def answer(self, request: Request) -> Response:
        inbox = await run_in_threadpool(open_inbox, self.papers.inbox, self.papers.known)
        letter = inbox.letter(request.path_params["name"])
        if letter.state.value == "waiting":
            raise InvalidInput("request", letter.name, "has no answer yet", "sign or decline it first")
        return FileResponse(letter.answer, media_type="application/json", filename=letter.answer.name)

    async def ledger(self, request: Request) -> Response:
        return self.page("ledger.html.j2", {"books": await run_in_threadpool(open_books, self.papers.ledger)})

    async def _runs(self) -> Runs:
        return await run_in_threadpool(open_runs, self.papers.runs, self.papers.known)

    async def runs(self, request: Request) -> Response:
        return self.page("runs.html.j2", {"runs": await self._runs(), "checked": self.papers.trust is not None})

    async def report(self, request: Request) -> Response:
        run = (await self._runs()).run(request.path_params["name"])
        text = await run_in_threadpool(lambda: render(run.content(self.papers.trust)))
        return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})

    async def compare(self, request: Request) -> Response:
        runs = await self._runs()
        pair = [runs.run(request.query_params.get(side, "")) for side in ("a", "b")]
        facts = [one.facts() for one in pair]
        names = list(dict.fromkeys([*facts[0], *facts[1]]))
        rows = [(name, *(side.get(name, "-") for side in facts)) for name in names]
        contents = [await run_in_threadpool(one.content, self.papers.trust) for one in pair]
        figures = [
            draw_figures(one.audit, run.document.guarantee, one.metrics, one.budget)
            for one, run in zip(contents, pair, strict=True)
        ]
        return self.page("compare.html.j2", {"pair": pair, "rows": rows, "figures": figures})

    async def icon(self, request: Request) -> Response:
        return FileResponse(_HERE / "static" / "icon.svg", media_type=_STATIC["icon.svg"])

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return self.page("error.html.j2", {"error": "There is no such file."}, 404)
        return FileResponse(_HERE / "static" / name, media_type=_STATIC[name])


def _chosen(query: Mapping[str, str]) -> Mapping[str, object]:
    """The chooser's answer by the rules of `privfair init --protect ask`; nothing is answered before it was asked."""
    first = {"protect": "attribute", "from": "coordinator", "fair": "groups", "sites": "1"}
    given = {name: query.get(name, value)[:200].strip() for name, value in first.items()}
    shown: dict[str, object] = {"questions": QUESTIONS, "given": given, "choice": None, "wrong": None}
    if not query:
        return shown
    try:
        for one in QUESTIONS:
            if given[one.option] not in one.answers:
                remedy = f"choose {' or '.join(one.answers)}"
                raise InvalidInput(one.option, given[one.option], "is not one of the answers", remedy)
        sites = planner.whole("sites", given["sites"])
        need = Need(Protected(given["protect"]), Observer(given["from"]), sites, Fair(given["fair"]))
        return shown | {"choice": choose(need)}
    except PrivfairError as error:
        return shown | {"wrong": str(error)}


def _answered(setting: PlannerSetting) -> Mapping[str, object]:
    """What the page says of a setting, or the sentence that says what is wrong with it."""
    try:
        return {"answer": planner.answer(setting), "command": setting.command(), "query": setting.query, "wrong": None}
    except PrivfairError as error:
        return {"answer": None, "command": "", "query": setting.query, "wrong": str(error)}


def _drawn(setting: PlannerSetting) -> Mapping[str, object]:
    try:
        shown = planner.curves(setting)
        return {"curves": shown, "alternatives": planner.assumptions(setting.plan(), setting.target())}
    except PrivfairError:  # said once, by the answer
        return {"curves": (), "alternatives": ()}


def serve(papers: DeskPapers, port: int, say: Callable[[str], None]) -> None:
    """Serve the desk on 127.0.0.1 until Ctrl-C.

    papers: What lies on the desk. port: 0 for any free one. say: Called with the address once it can be opened.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise InvalidInput("--port", port, f"cannot be used ({error.strerror})", "give another, or 0") from error
        access = DeskSecrets(listening.getsockname()[1])
        application = Desk(papers, access).application()
        config = uvicorn.Config(application, log_level="warning", access_log=False, server_header=False, lifespan="off")
        listening.listen()
        say(access.address)
        uvicorn.Server(config).run(sockets=[listening])
