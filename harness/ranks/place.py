"""The place of this process among the ranks of a run, from the environment that torchrun gives it."""

from collections.abc import Mapping

from harness.errors import UsageError
from harness.records.ranks import MOST_RANKS, RankPlace

_RANK, _LOCAL_RANK, _SIZE, _LOCAL_SIZE = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"


def read_place(environ: Mapping[str, str]) -> RankPlace | None:
    """Return the place of this process; None if torchrun has not started it, or alone.

    Raises UsageError for an environment that is not torchrun's.
    """
    if not all(name in environ for name in (_RANK, _SIZE, ADDRESS, PORT)):
        return None
    rank, size = _number(environ, _RANK), _number(environ, _SIZE)
    local_rank = _number(environ, _LOCAL_RANK) if _LOCAL_RANK in environ else rank
    if not rank < size <= MOST_RANKS:
        raise UsageError(f"{_RANK}={rank} and {_SIZE}={size} name no rank; start the run with torchrun.")
    first_rank = rank - local_rank
    local_size = _number(environ, _LOCAL_SIZE) if _LOCAL_SIZE in environ else size - first_rank
    if not local_rank < local_size or not 0 <= first_rank <= size - local_size:
        raise UsageError(
            f"{_LOCAL_RANK}={local_rank} and {_LOCAL_SIZE}={local_size} do not fit {_RANK}={rank} and "
            f"{_SIZE}={size}; start the run with torchrun."
        )
    return None if size == 1 else RankPlace(rank, local_rank, size, local_size)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise UsageError(f"{name}={text!r} is not a number; start the run with torchrun.")
    return int(text)
