"""The state of a script's run in words: its output is in its own terminal, and no page started it."""

from harness.analysis.log_health import LogHealth, signal_note
from harness.analysis.state import RunStatus, StateEvidence, derive_state
from harness.records.run import RunState

LIVE = StateEvidence(is_alive=True, heartbeat_age_s=1.0, is_process_running=True, is_script=True)


def test_a_script_that_prepares_its_data_has_not_trained_yet() -> None:
    status = derive_state(LIVE)
    assert status[:2] == (RunState.LAUNCHING, "The script has not trained yet.")


def test_a_script_that_hangs_is_looked_at_in_its_terminal() -> None:
    status = derive_state(LIVE._replace(log_state=RunState.RUNNING, heartbeat_age_s=99.0, last_step=7))
    assert status.state is RunState.STALLED
    assert "See its terminal; stopping it escalates to SIGKILL." in status.message
    assert "output" not in status.message


def test_a_script_that_vanished_before_it_trained_is_said_to_have() -> None:
    status = derive_state(LIVE._replace(is_alive=False, is_process_running=False, age_s=99.0))
    assert status.state is RunState.LOST
    assert status.message.startswith("The script ended before it trained, without an exit status")


def test_a_script_that_vanished_may_have_been_ended_by_a_signal_that_it_does_not_handle() -> None:
    evidence = LIVE._replace(
        is_alive=False, is_process_running=False, log_state=RunState.RUNNING, last_step=7
    )
    status = derive_state(evidence)
    assert status.state is RunState.LOST
    assert "at step 7 without an exit status: a signal (kill, docker stop," in status.message
    own_loop = derive_state(evidence._replace(is_script=False))
    assert "without an exit status: kill -9, a reboot" in own_loop.message


def test_the_error_that_ended_a_run_is_a_sentence_before_the_next_one() -> None:
    ended = LIVE._replace(log_state=RunState.FAILED, log_message="KeyError: 'x'", health=LogHealth(5, 5, 5))
    assert derive_state(ended).message == "KeyError: 'x'. Everything is in the log."


def test_a_script_that_a_stop_has_ended_by_a_signal_is_killed_though_nobody_saw_its_exit() -> None:
    note = f"[stepscope] {signal_note('the script caught this stop too', 'SIGTERM')}"
    evidence = LIVE._replace(
        is_alive=False,
        is_process_running=False,
        log_state=RunState.RUNNING,
        last_step=7,
        is_stop_requested=True,
        output_tail=("an epoch", note),
        health=LogHealth(7, 7, 7),
    )
    assert derive_state(evidence)[:2] == (
        RunState.KILLED,
        "Killed by SIGTERM at step 7; it did not stop by itself in time. Everything is in the log.",
    )
    for other in (evidence._replace(is_stop_requested=False), evidence._replace(output_tail=())):
        assert derive_state(other).state is RunState.LOST


def test_a_script_that_has_caught_a_stop_is_running_with_a_warning() -> None:
    evidence = LIVE._replace(log_state=RunState.RUNNING, last_step=7, is_stop_caught=True)
    assert derive_state(evidence)[:3] == (
        RunState.RUNNING,
        "Training at step 7: the script caught the KeyboardInterrupt of the stop. Stop it again: if it "
        "catches that too, its process is terminated.",
        True,
    )


def test_a_script_that_evaluates_for_long_is_running_with_a_notice() -> None:
    message = "No step has ended for 61 s, but models are called, as in an evaluation."
    status = derive_state(LIVE._replace(log_state=RunState.RUNNING, log_message=message))
    assert status == RunStatus(RunState.RUNNING, message, is_warning=False, is_notice=True)
    stalled = derive_state(
        LIVE._replace(log_state=RunState.STALLED, log_message="No step has ended for 61 s.")
    )
    assert (stalled.state, stalled.is_notice) == (RunState.STALLED, False)
    assert not derive_state(LIVE._replace(log_state=RunState.RUNNING, log_message="Training.")).is_notice
