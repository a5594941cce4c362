"""A run's state from its evidence: a total function, and one plain sentence for each way a run can be."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.state import Evidence, derive_state, signal_name
from harness.records import RunState

LOG_STATES = [None, "nonsense", *RunState]
RETURNCODES = [None, 0, 1, 3, 139, -1, -2, -6, -7, -9, -11, -15, -64, -200]


@pytest.mark.parametrize("log_state", LOG_STATES)
def test_every_combination_of_evidence_has_a_state_and_a_sentence(log_state: str | None) -> None:
    flags = itertools.product([False, True], repeat=4)
    for (alive, running, simulated, asked), code, age_s, beat_s, step in itertools.product(
        flags, RETURNCODES, [0.0, 1e6], [None, 0.0, 1e6], [None, 1204]
    ):
        status = derive_state(
            Evidence(log_state, "", alive, beat_s, running, code, age_s, simulated, asked, step, (), None)
        )
        assert status.state in RunState
        assert status.message.endswith((".", "?"))
        assert status.message[0].isupper()
        if not (alive or running or simulated or code is None):
            assert status.state.is_over, status


@given(
    st.builds(
        Evidence,
        log_state=st.none() | st.text(max_size=8) | st.sampled_from([s.value for s in RunState]),
        log_message=st.text(max_size=8),
        is_alive=st.booleans(),
        heartbeat_age_s=st.none() | st.floats(),
        is_process_running=st.booleans(),
        returncode=st.none() | st.integers(),
        age_s=st.floats(),
        is_simulated=st.booleans(),
        is_stop_asked=st.booleans(),
        last_step=st.none() | st.integers(),
        output_tail=st.lists(st.text(max_size=8)),
        log_problem=st.none() | st.text(max_size=8),
    )
)
def test_no_evidence_makes_it_raise(evidence: Evidence) -> None:
    assert isinstance(derive_state(evidence).state, RunState)


@pytest.mark.parametrize("ended", [s for s in RunState if s.is_over])
def test_the_logs_own_ending_outranks_everything_seen_later(ended: RunState) -> None:
    for alive, code in itertools.product([False, True], [None, 0, -9]):
        status = derive_state(
            Evidence(log_state=ended, log_message="As I said.", is_alive=alive, returncode=code)
        )
        assert status == (ended, "As I said.")


def test_a_run_killed_with_9_says_who_does_that_and_what_is_kept() -> None:
    status = derive_state(Evidence(log_state="running", returncode=-9, last_step=1204))
    assert status.state is RunState.KILLED
    assert status.message == (
        "Killed by SIGKILL at step 1,204; the kernel's OOM killer or somebody's kill -9. "
        "Everything up to step 1,204 is in the log."
    )


def test_a_run_killed_because_it_would_not_stop_says_so() -> None:
    status = derive_state(Evidence(log_state="running", returncode=-9, last_step=7, is_stop_asked=True))
    assert status.state is RunState.KILLED
    assert "did not stop by itself in time" in status.message


def test_a_process_that_vanished_unseen_is_lost() -> None:
    status = derive_state(Evidence(log_state="running", last_step=20_413))
    assert status.state is RunState.LOST
    assert "step 20,413" in status.message


def test_a_failed_start_quotes_the_errors_last_line() -> None:
    tail = (
        "Traceback (most recent call last):",
        "  raise ValueError(x)",
        "ValueError: no such model 'cn'",
        "",
    )
    status = derive_state(Evidence(returncode=1, output_tail=tail))
    assert status.state is RunState.FAILED
    assert status.message == "Failed with exit code 1. Its last words: ValueError: no such model 'cn'"


def test_a_refused_start_says_what_was_refused() -> None:
    tail = ("stepscope: amp cannot be 'fp16' on this CPU; it can do: off, bf16.",)
    status = derive_state(Evidence(returncode=1, output_tail=tail))
    assert status.state is RunState.FAILED
    assert status.message == "Could not start: amp cannot be 'fp16' on this CPU; it can do: off, bf16."


def test_out_of_memory_is_told_apart_from_other_failures() -> None:
    assert derive_state(Evidence(log_state="running", returncode=3)).state is RunState.OUT_OF_MEMORY


def test_a_held_lock_without_a_heartbeat_is_not_responding() -> None:
    status = derive_state(Evidence(log_state="running", is_alive=True, heartbeat_age_s=16.0, last_step=9))
    assert status.state is RunState.STALLED
    assert status.message.startswith("Not responding")


def test_a_held_lock_with_a_heartbeat_is_what_the_log_says() -> None:
    for said in (RunState.RUNNING, RunState.PAUSED, RunState.STALLED, RunState.STOPPING):
        assert derive_state(Evidence(log_state=said, is_alive=True, heartbeat_age_s=1.0)).state is said


def test_a_stop_that_was_asked_for_shows_before_the_harness_confirms_it() -> None:
    evidence = Evidence(log_state="running", is_alive=True, heartbeat_age_s=1.0, is_stop_asked=True)
    assert derive_state(evidence).state is RunState.STOPPING


def test_a_new_folder_is_launching_for_a_while_and_then_lost() -> None:
    assert derive_state(Evidence(age_s=1.0)).state is RunState.LAUNCHING
    assert derive_state(Evidence(age_s=60.0)).state is RunState.LOST


def test_a_process_that_never_gets_ready_stops_being_launching() -> None:
    assert derive_state(Evidence(age_s=30.0, is_process_running=True)).state is RunState.LAUNCHING
    assert derive_state(Evidence(age_s=500.0, is_process_running=True)).state is RunState.STALLED


def test_a_simulated_run_is_what_its_log_says_though_no_process_exists() -> None:
    assert derive_state(Evidence(log_state="stalled", is_simulated=True, age_s=1e6)).state is RunState.STALLED


def test_an_unreadable_log_is_reported_in_its_own_sentence() -> None:
    status = derive_state(Evidence(log_problem="The log is damaged.", age_s=1.0))
    assert status == (RunState.LOST, "The log is damaged.")


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(200) == "signal 200"
