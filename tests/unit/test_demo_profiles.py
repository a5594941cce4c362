"""The profiles of a simulated run agree with its steps, and with themselves."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.demo import write
from harness.profiling.kinds import classify
from harness.records.profile import OperatorKind, ProfileModuleRow, ProfileOpRow, ProfileRow
from harness.records.run import StepFlag, StepRow
from harness.store.home import Home
from harness.store.profile_log import ProfileLog
from harness.store.querying import Queries
from harness.store.reader import LogReader
from tests.store_factories import write_log

_STEPS = 1_000


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogReader]:
    with LogReader(write("amp", Home(tmp_path_factory.mktemp("home")), steps=_STEPS).log) as log:
        yield log


def rows(
    reader: LogReader, profile: ProfileRow
) -> tuple[list[StepRow], list[ProfileOpRow], list[ProfileModuleRow]]:
    steps = reader.steps(profile.first_step, profile.first_step + profile.steps - 1)
    number = profile.profile_id
    return steps, reader.profiles.operators(number), reader.profiles.modules(number)


def test_there_is_one_before_amp_and_one_after(reader: LogReader) -> None:
    before, after = reader.profiles.all()
    assert [before.profile_id, after.profile_id] == [1, 2]
    assert before.settings_version < after.settings_version
    flagged = [step.step for step in reader.steps(1, _STEPS) if step.flags & StepFlag.PROFILED]
    recorded = [range(one.first_step - 1, one.first_step + one.steps) for one in (before, after)]
    assert flagged == [step for span in recorded for step in span]


def test_everything_sums_to_what_the_steps_say(reader: LogReader) -> None:
    for profile in reader.profiles.all():
        steps, operators, modules = rows(reader, profile)
        assert profile.wall_ns == sum(step.step_ns for step in steps)
        assert profile.busy_ns == pytest.approx(sum(step.device_step_ns or 0 for step in steps), rel=1e-4)
        for is_kernel in (0, 1):
            result = [row.self_device_ns or 0 for row in operators if row.is_kernel == is_kernel]
            assert sum(result) == profile.busy_ns
        assert sum(row.self_device_ns or 0 for row in modules) == profile.busy_ns
        assert sum(row.self_cpu_ns for row in modules) == sum(row.self_cpu_ns for row in operators)
        stacks = reader.profiles.stacks(profile.profile_id)
        assert sum(row.self_device_ns or 0 for row in stacks) == profile.busy_ns


def test_a_module_contains_its_children(reader: LogReader) -> None:
    modules = {(row.module, row.phase): row for row in reader.profiles.modules(1)}
    for (path, phase), row in modules.items():
        below = [
            child.total_device_ns or 0
            for (other, at), child in modules.items()
            if at == phase and other and not other.startswith("<") and other.rpartition(".")[0] == path
            if other != path and not path.startswith("<")
        ]
        assert row.total_device_ns == (row.self_device_ns or 0) + sum(below)


def test_kinds_are_those_that_the_names_tell(reader: LogReader) -> None:
    kernels = [row for row in reader.profiles.operators(2) if row.is_kernel]
    message = {row.name: row.kind for row in kernels if classify(row.name) is not OperatorKind.OTHER}
    assert len(message) > 5
    assert {name: classify(name).value for name in message} == message


def test_a_kind_is_read_by_its_present_name(tmp_path: Path) -> None:
    log = write("amp", Home(tmp_path), steps=_STEPS).log
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute("UPDATE profile_ops SET kind = 'normalisation' WHERE kind = 'normalization'")
    with LogReader(log) as reader:
        kinds = {row.kind for row in reader.profiles.operators(1)}
    assert OperatorKind.NORMALIZATION in kinds
    assert "normalisation" not in kinds


def test_a_log_of_an_older_version_has_none(tmp_path: Path) -> None:
    closed = Queries(write_log(tmp_path / "log.sqlite3"))
    closed.close()  # From here on every query is an error.
    old = ProfileLog(closed, 4)
    assert not [*old.all(), *old.operators(1), *old.modules(1), *old.stacks(1), *old.stamp()]
