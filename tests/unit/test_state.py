"""State of a run from its evidence: a total function with one sentence per case."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import words
from harness.analysis.log_health import LogHealth
from harness.analysis.state import RunStatus, StateEvidence, derive_state, signal_name
from harness.records.run import RunState

LOG_STATES = [None, "nonsense", *RunState]
RETURNCODES = [None, 0, 1, 3, 139, -1, -2, -6, -7, -9, -11, -15, -64, -200]


@pytest.mark.slow
@pytest.mark.parametrize("log_state", LOG_STATES)
def test_every_combination_of_evidence_has_a_state_and_a_sentence(log_state: str | None) -> None:
    flags = itertools.product([False, True], repeat=4)
    for (alive, running, simulated, stopping), code, age_s, beat_s, step in itertools.product(
        flags, RETURNCODES, [0.0, 1e6], [None, 0.0, 1e6], [None, 1204]
    ):
        status = derive_state(
            StateEvidence(
                log_state, "", alive, beat_s, running, code, age_s, simulated, stopping, step, (), None
            )
        )
        assert status.state in RunState
        assert status.message.endswith((".", "?"))
        assert status.message[0].isupper()
        if not (alive or running or simulated or code is None):
            assert status.state.is_over, status


@given(
    st.builds(
        StateEvidence,
        log_state=st.none() | st.text(max_size=8) | st.sampled_from([s.value for s in RunState]),
        log_message=st.text(max_size=8),
        is_alive=st.booleans(),
        heartbeat_age_s=st.none() | st.floats(),
        is_process_running=st.booleans(),
        returncode=st.none() | st.integers(),
        age_s=st.floats(),
        is_simulated=st.booleans(),
        is_stop_requested=st.booleans(),
        last_step=st.none() | st.integers(),
        output_tail=st.lists(st.text(max_size=8)),
        log_problem=st.none() | st.text(max_size=8),
        health=st.none()
        | st.builds(
            LogHealth,
            finished_step=st.integers(0, 2**63),
            logged_step=st.none() | st.integers(0, 2**62),
            logged_steps=st.integers(0, 2**62),
            unwritten_since_unix_ns=st.none() | st.integers(0, 2**63),
            unwritten_s=st.none() | st.floats(),
            reason=st.text(max_size=8),
        ),
    )
)
def test_any_evidence_gives_a_state(evidence: StateEvidence) -> None:
    assert isinstance(derive_state(evidence).state, RunState)


@pytest.mark.parametrize("ended", [s for s in RunState if s.is_over])
def test_the_outcome_in_the_log_outranks_later_evidence(ended: RunState) -> None:
    for alive, code in itertools.product([False, True], [None, 0, -9]):
        status = derive_state(
            StateEvidence(log_state=ended, log_message="As logged.", is_alive=alive, returncode=code)
        )
        assert status[:2] == (ended, "As logged.")


def test_a_run_killed_with_9_states_likely_causes_and_what_is_in_the_log() -> None:
    status = derive_state(StateEvidence(log_state="running", returncode=-9, last_step=1204))
    assert status.state is RunState.KILLED
    assert status.message == (
        "Killed by SIGKILL at step 1,204; likely by the kernel's OOM killer or kill -9. "
        "Everything up to step 1,204 is in the log."
    )


def test_a_run_killed_because_it_would_not_stop_says_so() -> None:
    status = derive_state(
        StateEvidence(log_state="running", returncode=-9, last_step=7, is_stop_requested=True)
    )
    assert status.state is RunState.KILLED
    assert "did not stop by itself in time" in status.message


def test_a_process_that_vanished_is_lost() -> None:
    status = derive_state(StateEvidence(log_state="running", last_step=20_413))
    assert status.state is RunState.LOST
    assert "step 20,413" in status.message


def test_a_failed_start_quotes_the_errors_last_line() -> None:
    tail = (
        "Traceback (most recent call last):",
        "  raise ValueError(x)",
        "ValueError: no such model 'cn'",
        "",
    )
    status = derive_state(StateEvidence(returncode=1, output_tail=tail))
    assert status.state is RunState.FAILED
    assert (
        status.message == "Failed with exit code 1. Last line of its output: ValueError: no such model 'cn'"
    )


def test_a_refused_start_states_the_refused_setting() -> None:
    tail = ("stepscope: amp cannot be 'fp16' on this CPU; it can do: off, bf16.",)
    status = derive_state(StateEvidence(returncode=1, output_tail=tail))
    assert status.state is RunState.FAILED
    assert status.message == "Could not start: amp cannot be 'fp16' on this CPU; it can do: off, bf16."


def test_running_out_of_memory_is_reported_by_the_process_and_not_by_its_exit_code() -> None:
    exited = StateEvidence(log_state="running", returncode=3, last_step=9)
    status = derive_state(exited)  # As by `os._exit(3)` in a person's own model.
    assert (status.state, status.message) == (
        RunState.FAILED,
        "Failed with exit code 3 at step 9. It left no output.",
    )
    reported = exited._replace(reported_state="out_of_memory", reported_message="Out of memory in step 9.")
    assert derive_state(reported).state is RunState.OUT_OF_MEMORY


def test_a_locked_run_without_a_heartbeat_is_not_responding() -> None:
    status = derive_state(
        StateEvidence(log_state="running", is_alive=True, heartbeat_age_s=16.0, last_step=9)
    )
    assert status.state is RunState.STALLED
    assert status.message.startswith("Not responding")


def test_a_locked_run_with_a_heartbeat_has_the_state_in_its_log() -> None:
    for logged in (RunState.RUNNING, RunState.PAUSED, RunState.STALLED, RunState.STOPPING):
        assert (
            derive_state(StateEvidence(log_state=logged, is_alive=True, heartbeat_age_s=1.0)).state is logged
        )


def test_a_requested_stop_shows_before_the_harness_confirms_it() -> None:
    evidence = StateEvidence(log_state="running", is_alive=True, heartbeat_age_s=1.0, is_stop_requested=True)
    assert derive_state(evidence).state is RunState.STOPPING


def test_a_new_folder_is_launching_for_a_while_and_then_lost() -> None:
    assert derive_state(StateEvidence(age_s=1.0)).state is RunState.LAUNCHING
    assert derive_state(StateEvidence(age_s=60.0)).state is RunState.LOST


def test_a_process_that_never_gets_ready_stops_being_launching() -> None:
    assert derive_state(StateEvidence(age_s=30.0, is_process_running=True)).state is RunState.LAUNCHING
    assert derive_state(StateEvidence(age_s=500.0, is_process_running=True)).state is RunState.STALLED


def test_a_simulated_run_has_the_state_in_its_log_without_a_process() -> None:
    assert (
        derive_state(StateEvidence(log_state="stalled", is_simulated=True, age_s=1e6)).state
        is RunState.STALLED
    )


def test_an_unreadable_log_is_reported_in_its_own_sentence() -> None:
    status = derive_state(StateEvidence(log_problem="The log is damaged.", age_s=1.0))
    assert status[:2] == (RunState.LOST, "The log is damaged.")


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(200) == "signal 200"


KILLED = StateEvidence(log_state="running", returncode=-9, last_step=5_000)


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (LogHealth(5_000, 5_000, 5_000), "Everything is in the log."),
        (LogHealth(5_011, 5_000, 5_000), "11 steps after step 5,000 were not in the log yet."),
        (LogHealth(5_001, 5_000, 5_000), "1 step after step 5,000 was not in the log yet."),
        (LogHealth(5_000, 5_000, 4_100), "900 steps up to step 5,000 are missing."),
        (
            LogHealth(5_011, 5_000, 4_999, 1, 7.0, "database or disk is full"),
            "11 steps after step 5,000 were not in the log yet; 1 step up to step 5,000 is missing. "
            "The log could not be written: database or disk is full.",
        ),
        (LogHealth(3, None, 0), "None of its 3 steps is in the log."),
        (LogHealth(0, None, 0), "Everything up to step 5,000 is in the log."),
        (LogHealth(0, 5_000, 5_000), "Everything up to step 5,000 is in the log."),
        (None, "Everything up to step 5,000 is in the log."),
    ],
)
def test_every_outcome_states_how_many_steps_are_missing_in_the_log(
    health: LogHealth | None, words: str
) -> None:
    killed = derive_state(KILLED._replace(health=health))
    step = 5_000 if health is None else max(5_000, health.finished_step)
    assert killed.message == (
        f"Killed by SIGKILL at step {step:,}; likely by the kernel's OOM killer or kill -9. {words}"
    )
    assert derive_state(KILLED._replace(returncode=None, health=health)).message.endswith(words)
    counted = f" {words}" if health is not None and health.counts else ""
    finished = StateEvidence(log_state="finished", log_message="Took all 5,000 steps.", health=health)
    assert derive_state(finished).message == f"Took all 5,000 steps.{counted}"
    assert derive_state(KILLED._replace(returncode=1, health=health)).message.endswith(
        f"It left no output.{counted}"
    )


def test_a_process_that_ended_in_order_without_its_log_is_called_by_its_own_outcome() -> None:
    health = LogHealth(5_011, 5_000, 5_000, 1, 7.0, "database or disk is full")
    ended = StateEvidence(
        log_state="running",
        last_step=5_000,
        health=health,
        reported_state="stopped",
        reported_message="Stopped by SIGTERM.",
    )
    missing = (
        "11 steps after step 5,000 were not in the log yet. "
        "The log could not be written: database or disk is full."
    )
    lines = ["The log could not be completed; 11 steps and 3 other rows are lost."]
    incomplete = "Its log is incomplete: 11 steps and 3 other rows are lost; was the disk full?"
    message = derive_state(ended._replace(output_tail=lines)).message
    assert message == f"Stopped by SIGTERM. {incomplete} {missing}"
    message = derive_state(ended._replace(health=LogHealth(5_000, 5_000, 5_000))).message
    assert message == "Stopped by SIGTERM. This is not in its log."
    failed = ended._replace(reported_state="failed", reported_message="ValueError: it fails")
    assert derive_state(failed).message == f"ValueError: it fails. {missing}"
    for returncode in (None, 0):
        status = derive_state(ended._replace(returncode=returncode))
        assert status == RunStatus(RunState.STOPPED, f"Stopped by SIGTERM. {missing}")
    assert derive_state(ended._replace(returncode=-9)).state is RunState.KILLED
    assert derive_state(ended._replace(is_alive=True, heartbeat_age_s=0.5)).state is RunState.RUNNING
    damaged = derive_state(ended._replace(log_problem="The log is damaged."))
    assert damaged == RunStatus(RunState.STOPPED, "Stopped by SIGTERM. The log is damaged.")
    lost = derive_state(ended._replace(log_problem="The log is damaged.", output_tail=lines))
    assert lost.message.endswith(" 11 steps and 3 other rows are lost. The log is damaged.")
    for text in ("running", "nonsense", None):
        assert derive_state(ended._replace(reported_state=text)).state is RunState.LOST


UNWRITTEN = LogHealth(5_123, 4_000, 4_000, 1_700_000_000 * 10**9, 5.0, "database or disk is full")


def test_a_live_run_whose_log_is_not_written_says_so_after_five_seconds() -> None:
    live = StateEvidence(log_state="running", log_message="Training.", is_alive=True, heartbeat_age_s=0.5)
    soon = derive_state(live._replace(health=UNWRITTEN._replace(unwritten_s=4.9)))
    assert soon == RunStatus(RunState.RUNNING, "Training.", is_warning=False)
    late = derive_state(live._replace(health=UNWRITTEN))
    assert (late.state, late.is_warning) == (RunState.RUNNING, True)
    since = words.moment(UNWRITTEN.unwritten_since_unix_ns)
    assert late.message.startswith(f"Training at step 5,123, but its log is not written since {since} (")
    assert late.message.endswith(" (database or disk is full): is the disk full?")
    for reason, end in [
        ("", ": is the disk full?"),
        ("database is locked", " (database is locked): is it locked by another program?"),
        ("it was given up after 3 new logs (x)", ": it was given up after 3 new logs (x)."),
    ]:
        assert derive_state(live._replace(health=UNWRITTEN._replace(reason=reason))).message.endswith(end)
    hanging = derive_state(live._replace(health=UNWRITTEN, heartbeat_age_s=16.0))
    assert hanging.state is RunState.STALLED
    fresh = derive_state(StateEvidence(is_alive=True, heartbeat_age_s=0.5, health=UNWRITTEN))
    assert (fresh.state, fresh.is_warning) == (RunState.RUNNING, True)


def test_an_unknown_outcome_is_explained_by_the_runs_output() -> None:
    crashed = ("Fatal Python error: Segmentation fault", "", "Thread 0x1 (most recent call first):", "  x")
    lost = derive_state(KILLED._replace(returncode=None, output_tail=crashed))
    assert lost.message == (
        "Native code crashed at step 5,000 (Segmentation fault); the stacks are in the run's output. "
        "Everything up to step 5,000 is in the log."
    )
    killed = derive_state(KILLED._replace(returncode=-11, output_tail=crashed))
    assert "; a crash in native code (Segmentation fault); the stacks are in its output." in killed.message
    full = ("The log could not be written to its end; 4,944 steps and 2 other rows are lost.",)
    unwritten = derive_state(KILLED._replace(returncode=None, output_tail=full))
    assert "4,944 steps and 2 other rows are lost; was the disk full?" in unwritten.message
    in_order = derive_state(KILLED._replace(returncode=0, output_tail=full))
    assert in_order.message.endswith("its log is incomplete: 4,944 steps and 2 other rows are lost.")
