"""The routes that answer the links to downloads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from os import fstat
from tempfile import TemporaryFile, gettempdir
from typing import IO
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dashboard.data.captures import captured
from dashboard.download_links import CAPTURES, REPORT, TABLES
from dashboard.report.build import report_of
from harness.errors import StepscopeError, UnknownRunError
from harness.export import ExportFormat, zip_runs
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor

_BAD_REQUEST, _NOT_FOUND, _FAILED = 400, 404, 500
_PART_BYTES = 1 << 20


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
        name = folders[0].run_id if len(folders) == 1 else f"stepscope-{len(folders)}-runs"
        return _sent(_zipped(folders, form), f"{name}.{form.value}.zip")

    def report(request: Request) -> Response:
        folders = find(request.query_params.getlist("run"))
        if not folders:
            return _text("No run is named.", _BAD_REQUEST)
        name = f"stepscope-{'-'.join(folder.run_id for folder in folders[:2])}.html"
        headers = {"Content-Disposition": _attachment(name)}
        return Response(report_of(supervisor(), folders), media_type="text/html", headers=headers)

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


def _zipped(folders: Sequence[RunFolder], form: ExportFormat) -> IO[bytes]:
    """Return an open file, at its begin, that the system removes once it is closed. Raises StepscopeError."""
    try:
        with ExitStack() as stack:
            file = stack.enter_context(TemporaryFile(prefix="stepscope-"))
            zip_runs(folders, form, file)
            file.seek(0)
            stack.pop_all()
            return file
    except OSError as error:
        raise StepscopeError(
            f"The tables cannot be written to {gettempdir()}: {error.strerror or error}. Free space there, "
            f"or export in a shell: stepscope export {folders[0].run_id}"
        ) from None


def _sent(file: IO[bytes], name: str) -> Response:
    """Return the answer that sends `file` in parts under `name`, and closes it."""
    headers = {"Content-Disposition": _attachment(name), "Content-Length": str(fstat(file.fileno()).st_size)}
    return StreamingResponse(_parts(file), media_type="application/zip", headers=headers)


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    with file:  # Closed also where the reader goes away: the generator ends with it.
        while part := file.read(_PART_BYTES):
            yield part


def _attachment(name: str) -> str:
    return f"attachment; filename*=utf-8''{quote(name)}"


def _text(message: str, status: int) -> PlainTextResponse:
    return PlainTextResponse(f"{message}\n", status_code=status)
