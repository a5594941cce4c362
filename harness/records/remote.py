"""Records of a run that trains on another machine."""

from typing import NamedTuple


class RemoteRequest(NamedTuple):
    """The machine on which a run trains. `retries` is the number of new runs that are started, one after
    the other, when its node is lost."""

    # The engine that places it: "ray".
    engine: str
    retries: int = 0
    # The name of the only machine that may train it; None: any.
    host: str | None = None
    # True: also where it is predicted not to fit.
    is_forced: bool = False
