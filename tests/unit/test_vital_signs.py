"""Test what a process leaves in a page of `alive`, read by others and after its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.store.liveness import Liveness, is_alive
from harness.store.vital_signs import VitalPage, VitalSigns, read_vital_signs
from harness.supervisor.inspection import caught_stops

_PROCESS = """
import sys
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])) as alive:
    alive.signs.step_finished(4_711)
    alive.signs.set_unwritten(123, "database or disk is full")
    alive.signs.step_finished(4_712)
    print("done", flush=True)
    for line in sys.stdin:
        alive.beat()
        alive.signs.step_finished(int(line))
        print("done", flush=True)
"""


def _process(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    _until_done(process)
    return process


def _until_done(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def _beat(process: "subprocess.Popen[str]", step: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{step}\n")
    process.stdin.flush()
    _until_done(process)


def test_a_kill_loses_none_of_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with _process(path) as process:
        assert read_vital_signs(path) == VitalSigns(4_712, 123, "database or disk is full")
        process.send_signal(signal.SIGKILL)
    assert read_vital_signs(path) == VitalSigns(4_712, 123, "database or disk is full")


def test_a_file_that_was_deleted_is_held_again_at_the_second_beat(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with _process(path) as process:
        path.unlink()
        _beat(process, 1)
        assert not path.exists()
        _beat(process, 2)
        assert is_alive(path)
        assert read_vital_signs(path) == VitalSigns(2, 123, "database or disk is full")
        path.unlink()
        path.write_text("somebody else's")
        _beat(process, 3)
        _beat(process, 4)
        _beat(process, 5)
        assert is_alive(path)
        assert read_vital_signs(path) == VitalSigns(5, 123, "database or disk is full")
        process.kill()


def test_only_the_holder_may_write(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with _process(path) as process:
        assert path.stat().st_mode & 0o777 == 0o400
        process.kill()
    with Liveness.hold(path) as alive:
        alive.signs.step_finished(1)
    assert read_vital_signs(path) == VitalSigns(1, None, "")


def test_an_outcome_of_any_length_can_be_read_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with Liveness.hold(path) as alive:
        alive.signs.set_outcome("failed", "é" * 5_000)
    with Liveness.hold(tmp_path / "other") as other:
        other.signs.set_outcome("stopped", "Stopped by SIGTERM.")
    signs = read_vital_signs(path)
    assert signs is not None
    assert (signs.state, signs.message) == ("failed", "é" * 1_000)
    assert path.stat().st_size == 4_096
    assert read_vital_signs(tmp_path / "other") == VitalSigns(0, None, "", "stopped", "Stopped by SIGTERM.")


def test_a_message_is_cut_between_two_characters(tmp_path: Path) -> None:
    with Liveness.hold(tmp_path / "alive") as alive:
        alive.signs.set_outcome("failed", "a" + "é" * 1_000)
    signs = read_vital_signs(tmp_path / "alive")
    assert signs is not None
    assert signs.message == "a" + "é" * 999


def test_an_outage_of_the_log_does_not_have_the_reason_of_an_earlier_one(tmp_path: Path) -> None:
    with Liveness.hold(tmp_path / "alive") as alive:
        alive.signs.set_unwritten(1, "database or disk is full")
        alive.signs.set_unwritten(0, "")
        alive.signs.set_unwritten(2, "")
    assert read_vital_signs(tmp_path / "alive") == VitalSigns(0, 2, "")


def test_what_is_no_page_of_ours_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert read_vital_signs(path) is None
    path.write_bytes(b"")
    assert read_vital_signs(path) is None
    path.write_bytes(os.urandom(4_096))
    assert read_vital_signs(path) is None
    assert read_vital_signs(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_vital_signs(path) is None


def test_stops_that_a_script_catches_are_counted(tmp_path: Path) -> None:
    with Liveness.hold(tmp_path / "alive") as alive:
        for unix_ns in (7, 9):
            alive.signs.stop_caught(unix_ns)
    signs = read_vital_signs(tmp_path / "alive")
    assert signs is not None
    assert (signs.stops_caught, signs.stop_caught_unix_ns) == (2, 9)
    assert [caught_stops(signs, requested) for requested in (None, 8, 9, 10)] == [0, 2, 0, 0]
    assert caught_stops(None, 8) == 0


def test_a_page_that_is_closed_while_another_thread_stores_into_it_takes_what_is_stored(
    tmp_path: Path,
) -> None:
    class ClosingText(str):
        def encode(self, *codec: str) -> bytes:
            page.close()
            return super().encode(*codec)

    class ClosingNumber:
        def __index__(self) -> int:
            page.close()
            return 7

    number: Any = ClosingNumber()
    stores: dict[str, Callable[[VitalPage], None]] = {
        "text": lambda page: page.set_unwritten(0, ClosingText("disk full")),
        "number": lambda page: page.step_finished(number),
    }
    for name, store in stores.items():
        descriptor = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        page = VitalPage(descriptor)
        store(page)
        page.step_finished(9)
        os.close(descriptor)
    signs = [read_vital_signs(tmp_path / name) for name in ("text", "number")]
    assert signs == [VitalSigns(0, None, "disk full"), VitalSigns(7, None, "")]
