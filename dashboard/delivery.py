"""Delivery of everything that a run of a page has drawn, also where the next run is requested as it ends.

A session of Streamlit ignores what comes from a runner of the page that is not the current one. A request for
a fragment (a tick) that comes when the runner has stopped starts a new runner at once, although what the last
run has drawn may still wait for the session's event loop: on a busy machine the browser then never gets it,
and a table stays as it was before a search. So such a request waits until the loop has come to it.
"""

from typing import Any

from streamlit.runtime.app_session import AppSession, AppSessionState

_CREATE = "_create_scriptrunner"
_create = getattr(AppSession, _CREATE, None)


def deliver_last_output() -> None:
    """Make every session of this process start a runner only when the output of the last one is delivered.
    Idempotent. Without effect where this version of Streamlit starts runners in another way."""
    if _create is not None:
        setattr(AppSession, _CREATE, _create_after_output)


def _create_after_output(session: Any, request: Any) -> None:
    """In place of `AppSession._create_scriptrunner`."""
    assert _create is not None
    stopped = session._scriptrunner
    if stopped is None:
        _create(session, request)
    else:  # It takes no more requests. All that it has drawn is in the loop's queue.
        session._event_loop.call_soon(_create_unless_superseded, session, stopped, request)


def _create_unless_superseded(session: Any, stopped: Any, request: Any) -> None:
    assert _create is not None
    runner = session._scriptrunner
    if session._state is AppSessionState.SHUTDOWN_REQUESTED:
        return
    if runner is None or runner is stopped:
        _create(session, request)
    elif not runner.request_rerun(request):
        _create_after_output(session, request)
