"""Test who gets in: the rules at the dashboard's door, one request each."""

import socket
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboard.guard import credentials
from dashboard.guard.options import Options, problem_with
from dashboard.guard.policy import AccessRequest, Allowed, Refused, TokenAccepted, decide
from tests.guard_factories import OWNER, PORT, STRANGER, TOKEN, request, server

OWN = f"http://localhost:{PORT}"


def _status(attempt: AccessRequest, **of_house: object) -> int:
    verdict = decide(server(**of_house), attempt)  # type: ignore[arg-type]
    return (
        verdict.status if isinstance(verdict, Refused) else 303 if isinstance(verdict, TokenAccepted) else 200
    )


def _cookie(uid: int | None, port: int = PORT) -> list[str]:
    return [f"other=1; {credentials.cookie_name(port)}={credentials.cookie_value(TOKEN, uid)}"]


def test_the_owners_own_process_passes_and_everybody_else_does_not() -> None:
    assert _status(request(OWNER)) == 200
    assert _status(request(STRANGER)) == 403
    assert _status(request(None)) == 403
    assert _status(request(None), uid=None) == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8501", 200),
        ("127.0.0.1:8501", 200),
        ("127.1.2.3:8501", 200),
        ("[::1]:8501", 200),
        # A tunnel may begin at any port.
        ("localhost:9000", 200),
        ("evil.example", 403),
        ("evil.example:8501", 403),
        ("localhost.evil.example:8501", 403),
        ("127.0.0.1.nip.example", 403),
        ("192.168.1.5:8501", 403),
        ("localhost:", 403),
        ("localhost:80x", 403),
        ("::1", 403),
        ("user@localhost", 403),
        ("", 403),
    ],
)
def test_only_a_name_of_this_server_is_a_host(host: str, status: int) -> None:
    assert _status(request(hosts=[host])) == status


def test_a_request_has_one_host() -> None:
    assert _status(request(hosts=[])) == 403
    assert _status(request(hosts=["localhost", "localhost"])) == 403


@pytest.mark.parametrize("is_websocket", [False, True])
@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:9999",
        "http://127.0.0.1:8501",
        "https://localhost:8501",
        "http://evil.example",
        "null",
        "",
    ],
)
def test_a_foreign_origin_is_refused_even_of_the_owner(origin: str, is_websocket: bool) -> None:
    assert _status(request(origins=[origin], is_websocket=is_websocket)) == 403
    assert _status(request(origins=[OWN], is_websocket=is_websocket)) == 200


def test_what_changes_something_needs_an_origin() -> None:
    assert _status(request(is_websocket=True)) == 403
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert _status(request(method=method)) == 403
        assert _status(request(method=method, origins=[OWN])) == 200
    assert _status(request(origins=[OWN, OWN])) == 403


def test_another_page_may_link_here_and_do_nothing_else() -> None:
    for site in ("cross-site", "same-site"):
        assert _status(request(fetch_site=site, is_navigation=True)) == 200
        assert _status(request(fetch_site=site, is_navigation=False)) == 403
    assert _status(request(fetch_site="same-origin", is_navigation=False)) == 200


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address() -> None:
    attempt = request(STRANGER, path="/memory", query=f"run=a%20b&token={TOKEN}&x=")
    verdict = decide(server(), attempt)
    assert isinstance(verdict, TokenAccepted)
    target = urlsplit(verdict.location)
    assert (target.path, parse_qs(target.query, True)) == ("/memory", {"run": ["a b"], "x": [""]})
    name, _, rest = verdict.cookie.partition("=")
    value, *flags = rest.split("; ")
    assert flags == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert TOKEN not in verdict.cookie
    assert _status(request(STRANGER, cookies=[f"{name}={value}"])) == 200
    opening = request(STRANGER, cookies=[f"{name}={value}"], is_websocket=True, origins=[OWN])
    assert _status(opening) == 200


def test_after_a_link_elsewhere_a_page_leads_on_and_a_program_is_redirected() -> None:
    """Browsers do not send Sec-Fetch-Site over HTTP to another machine."""
    for site, is_browser, is_by_page in (
        ("none", True, False),
        ("same-origin", True, False),
        ("cross-site", True, True),
        ("same-site", True, True),
        (None, True, True),
        (None, False, False),
    ):
        attempt = request(None, query=f"token={TOKEN}", fetch_site=site, is_browser=is_browser)
        verdict = decide(server(), attempt)
        assert isinstance(verdict, TokenAccepted)
        assert verdict.is_by_page is is_by_page


def test_over_https_the_cookie_is_secure() -> None:
    verdict = decide(server(), request(None, is_https=True, query=f"token={TOKEN}"))
    assert isinstance(verdict, TokenAccepted)
    assert verdict.cookie.endswith("; Secure")


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example"])
def test_entering_never_leads_to_another_server(path: str) -> None:
    verdict = decide(server(), request(None, path=path, query=f"token={TOKEN}"))
    assert isinstance(verdict, TokenAccepted)
    assert urlsplit(verdict.location).netloc == ""
    assert "\\" not in verdict.location
    assert not verdict.location.startswith("//")


@pytest.mark.parametrize("given", ["", "x", TOKEN[:-1], TOKEN + "x", "é\ud800"])
def test_a_wrong_token_is_refused_and_slowed_down(given: str) -> None:
    verdict = decide(server(), request(None, query=f"token={given.encode(errors='replace').decode()}"))
    assert isinstance(verdict, Refused)
    assert (verdict.status, verdict.is_guess) == (403, True)


def test_without_a_token_nobody_enters_by_one() -> None:
    assert _status(request(None, query="token="), token=None) == 403
    assert _status(request(None, query="token=None"), token=None) == 403
    assert _status(request(None, cookies=_cookie(None)), token=None) == 403
    assert _status(request(OWNER), token=None) == 200


def test_a_cookie_is_good_for_the_user_and_the_port_it_was_given_to() -> None:
    assert _status(request(STRANGER, cookies=_cookie(STRANGER))) == 200
    assert _status(request(None, cookies=_cookie(None))) == 200
    assert _status(request(STRANGER + 1, cookies=_cookie(STRANGER))) == 403
    assert _status(request(None, cookies=_cookie(STRANGER))) == 403
    assert _status(request(STRANGER, cookies=_cookie(STRANGER, PORT + 1))) == 403


def test_a_cookie_does_not_make_a_foreign_name_or_page_ours() -> None:
    cookies = _cookie(None)
    assert _status(request(None, cookies=cookies, hosts=["evil.example"])) == 403
    foreign = request(None, cookies=cookies, origins=["http://localhost:9999"], is_websocket=True)
    assert _status(foreign) == 403


@pytest.mark.parametrize(
    ("share", "host", "status"),
    [
        ("192.168.1.5", "192.168.1.5:8501", 200),
        ("192.168.1.5", "192.168.1.6:8501", 403),
        ("192.168.1.5", f"{socket.gethostname()}:8501", 200),
        ("192.168.1.5", "localhost:8501", 200),
        ("0.0.0.0", "10.1.2.3:9000", 200),
        ("::", "[fe80::1]:8501", 200),
        ("0.0.0.0", "evil.example:8501", 403),
        ("gpubox.example", "gpubox.example:8501", 200),
        (None, "192.168.1.5:8501", 403),
    ],
)
def test_a_shared_dashboard_is_also_called_by_the_address_shared(
    share: str | None, host: str, status: int
) -> None:
    assert _status(request(None, hosts=[host], cookies=_cookie(None)), share=share) == status


def test_the_owners_uid_counts_under_a_loopback_name_alone() -> None:
    """So that a name rebound to a shared address is no way in either."""
    assert _status(request(OWNER, hosts=["10.1.2.3"]), share="0.0.0.0") == 403
    assert _status(request(OWNER, hosts=["localhost"]), share="0.0.0.0") == 200


def test_under_unsafe_options_everybody_gets_one_sentence() -> None:
    for attempt in (
        request(OWNER),
        request(OWNER, is_websocket=True, origins=[OWN]),
        request(query=f"token={TOKEN}"),
    ):
        verdict = decide(server(problem="Started wrongly."), attempt)
        assert verdict == Refused(503, "Started wrongly.")


@pytest.mark.parametrize(
    ("options", "share", "is_safe"),
    [
        (Options("127.0.0.1", False), None, True),
        (Options("localhost", False), None, True),
        (Options("::1", False), None, True),
        (Options(None, False), None, False),
        (Options("0.0.0.0", False), None, False),
        (Options("192.168.1.5", False), None, False),
        (Options("192.168.1.5", False), "192.168.1.5", True),
        (Options("0.0.0.0", False), "192.168.1.5", False),
        (Options(None, False), "0.0.0.0", False),
        (Options("127.0.0.1", True), None, False),
        (Options("0.0.0.0", True), "0.0.0.0", False),
    ],
)
def test_which_options_are_safe(options: Options, share: str | None, is_safe: bool) -> None:
    problem = problem_with(options, share)
    assert (problem is None) is is_safe
    assert problem is None or "`stepscope dashboard`" in problem


def test_allowed_is_the_only_verdict_that_goes_on() -> None:
    assert decide(server(), request()) == Allowed()


@pytest.mark.parametrize("name", ["gpu.example:8501", "192.168.1.5:8501", "localhost"])
def test_a_program_with_the_token_in_a_header_may_use_any_name(name: str) -> None:
    scrape = request(None, hosts=[name], authorizations=[f"Bearer {TOKEN}"])
    assert _status(scrape) == 200
    assert _status(scrape._replace(authorizations=[f"bearer  {TOKEN}"])) == 200
    assert _status(scrape, token=None) == 403


def test_a_wrong_token_in_a_header_is_a_guess_even_of_the_owner() -> None:
    verdict = decide(server(), request(OWNER, authorizations=["Bearer wrong"]))
    assert isinstance(verdict, Refused)
    assert (verdict.status, verdict.is_guess) == (403, True)


def test_a_token_in_a_header_only_reads() -> None:
    bearer = [f"Bearer {TOKEN}"]
    assert _status(request(None, method="PUT", authorizations=bearer, origins=[OWN])) == 403
    assert _status(request(None, is_websocket=True, authorizations=bearer, origins=[OWN])) == 403
    assert _status(request(None, authorizations=["Basic abc"])) == 403
