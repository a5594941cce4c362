"""The route that Prometheus scrapes."""

from collections.abc import Callable
from functools import cache

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from harness.errors import StepscopeError
from harness.metrics import Exposition
from harness.supervisor import Supervisor

METRICS_PATH = "/metrics"


def metrics_route(path: str, supervisor: Callable[[], Supervisor]) -> Route:
    """Return the route of the metrics of a supervisor's home, which is created for the first scrape."""

    @cache
    def exposition() -> Exposition:
        return Exposition(supervisor())

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        try:
            scrape = await run_in_threadpool(lambda: exposition().scrape(accept))
        except StepscopeError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        return Response(scrape.body, media_type=scrape.content_type)

    return Route(path, metrics, methods=["GET"])
