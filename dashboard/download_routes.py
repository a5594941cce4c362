"""The routes that answer the links to downloads."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkstemp
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from dashboard.data.captures import captured
from dashboard.download_links import CAPTURES, REPORT, TABLES
from dashboard.report.build import report_of
from harness.errors import StepscopeError, UnknownRunError
from harness.export import ExportFormat, zip_runs
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor

_BAD_REQUEST, _NOT_FOUND, _FAILED = 400, 404, 500


def download_routes(at: Callable[[str], str], supervisor: Callable[[], Supervisor]) -> list[Route]:
    """Return the routes of all downloads from a supervisor's home, each at the address `at` gives its path.
    Files are sent from the disk in parts."""

    def find(run_ids: Sequence[str]) -> list[RunFolder]:
        return [supervisor().home.find(run_id) for run_id in run_ids]

    def capture(request: Request) -> Response:
        [folder], name = find([request.path_params["run"]]), request.path_params["file"]
        path = captured(folder, name)
        if path is None:
            return _text(f"{name} is not in the folder of {folder.run_id} any more.", _NOT_FOUND)
        return FileResponse(path, filename=f"{folder.run_id}-{name}", media_type="application/octet-stream")

    def tables(request: Request) -> Response:
        try:
            form = ExportFormat(request.query_params.get("format", ""))
        except ValueError:
            return _text(f"The format is one of {', '.join(ExportFormat)}.", _BAD_REQUEST)
        folders = find(request.query_params.getlist("run"))
        if not folders:
            return _text("No run is named.", _BAD_REQUEST)
        path = _temporary()
        try:
            with path.open("wb") as file:
                zip_runs(folders, form, file)
        except BaseException:
            path.unlink()
            raise
        name = folders[0].run_id if len(folders) == 1 else f"stepscope-{len(folders)}-runs"
        return FileResponse(
            path,
            filename=f"{name}.{form.value}.zip",
            media_type="application/zip",
            background=BackgroundTask(path.unlink, missing_ok=True),
        )

    def report(request: Request) -> Response:
        folders = find(request.query_params.getlist("run"))
        if not folders:
            return _text("No run is named.", _BAD_REQUEST)
        name = quote(f"stepscope-{'-'.join(folder.run_id for folder in folders[:2])}.html")
        attachment = {"Content-Disposition": f"attachment; filename*=utf-8''{name}"}
        return Response(report_of(supervisor(), folders), media_type="text/html", headers=attachment)

    return [
        _route(at(f"{CAPTURES}/{{run}}/{{file}}"), capture),
        _route(at(TABLES), tables),
        _route(at(REPORT), report),
    ]


def _route(path: str, answer: Callable[[Request], Response]) -> Route:
    async def answered(request: Request) -> Response:
        try:
            return await run_in_threadpool(answer, request)
        except UnknownRunError as error:
            return _text(str(error), _NOT_FOUND)
        except (StepscopeError, OSError) as error:
            return _text(str(error), _FAILED)

    return Route(path, answered, methods=["GET"])


def _temporary() -> Path:
    descriptor, name = mkstemp(prefix="stepscope-", suffix=".zip")
    os.close(descriptor)
    return Path(name)


def _text(message: str, status: int) -> PlainTextResponse:
    return PlainTextResponse(f"{message}\n", status_code=status)
