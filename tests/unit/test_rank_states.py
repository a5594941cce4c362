"""The state of a run of several processes, from the evidence on each."""

from harness.analysis.ranks.states import RankFacts, state_of_ranks
from harness.analysis.state import RunStatus
from harness.records.run import RunState

_LOST_PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19357."
_FAILED = RunStatus(RunState.FAILED, _LOST_PEER)


def _failed(rank: int, message: str = _LOST_PEER, step: int = 100, ended: int = 10) -> RankFacts:
    return RankFacts(rank, RunState.FAILED, message, step, ended, returncode=1)


def test_a_killed_rank_explains_the_lost_connections_of_the_others() -> None:
    killed = RankFacts(1, RunState.RUNNING, "Training.", 96, returncode=-9)
    status = state_of_ranks(_FAILED, [_failed(0), killed, _failed(2)])
    assert status.state is RunState.KILLED
    cause, logs = "Rank 1: Killed by SIGKILL at step 96.", "Their logs end at steps 96 to 100."
    assert status.message == f"{cause} The other ranks ended with it. {logs}"


def test_a_rank_that_vanished_without_an_exit_code_is_named_too() -> None:
    vanished = RankFacts(1, RunState.RUNNING, "Training.", 96)
    status = state_of_ranks(_FAILED, [_failed(0), vanished])
    assert status.state is RunState.KILLED
    assert status.message.startswith("Rank 1: The process vanished at step 96 without an exit status.")


def test_a_rank_out_of_memory_explains_the_end_of_all() -> None:
    full = RankFacts(2, RunState.OUT_OF_MEMORY, "Out of memory in step 97.", 96, 12, returncode=3)
    status = state_of_ranks(_FAILED, [_failed(0), _failed(1, ended=5), full])
    assert status.state is RunState.OUT_OF_MEMORY
    assert status.message.startswith("Rank 2: Out of memory in step 97.")


def test_a_rank_that_failed_by_itself_is_told_from_those_that_lost_it() -> None:
    own = _failed(1, "ValueError: a label is 12, and there are 10 classes", ended=20)
    status = state_of_ranks(_FAILED, [_failed(0), own])
    assert status == RunStatus(
        RunState.FAILED,
        "Rank 1: ValueError: a label is 12, and there are 10 classes. The other ranks ended with it. "
        "Their logs end at step 100.",
    )


def test_lost_connections_alone_name_no_rank() -> None:
    assert state_of_ranks(_FAILED, [_failed(0), _failed(1)]) == _FAILED


def test_a_run_that_ended_well_stays_as_it_is() -> None:
    finished = RunStatus(RunState.FINISHED, "Took all 300 steps.")
    assert state_of_ranks(finished, [RankFacts(0), RankFacts(1, returncode=-9)]) == finished


def test_a_rank_without_heartbeat_holds_the_others_up() -> None:
    running = RunStatus(RunState.RUNNING, "Training.")
    alive = [RankFacts(n, RunState.RUNNING, "Training.", 9, is_alive=True, heartbeat_age_s=1) for n in (0, 1)]
    assert state_of_ranks(running, alive) == running
    silent = alive[1]._replace(heartbeat_age_s=40.0)
    status = state_of_ranks(running, [alive[0], silent])
    assert status.state is RunState.STALLED
    assert (
        status.message == "Rank 1 is not responding: its last heartbeat was 40 s ago; the others wait for it."
    )


def test_a_rank_that_has_ended_before_the_others_is_a_warning() -> None:
    running = RunStatus(RunState.RUNNING, "Training.")
    ranks = [
        RankFacts(0, RunState.RUNNING, "Training.", 9, is_alive=True, heartbeat_age_s=1),
        RankFacts(1, RunState.RUNNING, "Training.", 7),
    ]
    status = state_of_ranks(running, ranks)
    assert status.is_warning
    assert status.message.startswith("Rank 1 has ended; torchrun ends the others.")


def test_a_rank_that_finishes_first_is_no_warning() -> None:
    running = RunStatus(RunState.RUNNING, "Training.")
    ranks = [
        RankFacts(0, RunState.RUNNING, "Training.", 9, is_alive=True, heartbeat_age_s=1),
        RankFacts(1, RunState.FINISHED, "Reached the limit of 2 s.", 9, 10),
    ]
    assert state_of_ranks(running, ranks) == running
