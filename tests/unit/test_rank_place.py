"""The place of a process among ranks, from torchrun's environment."""

import pytest

from harness.errors import SettingError, UsageError
from harness.ranks.place import read_place
from harness.records.ranks import RankPlace
from harness.settings.resolve import check_processes, resolve

_ENVIRONMENT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_torchruns_environment_names_rank_local_rank_and_size() -> None:
    place = read_place(_ENVIRONMENT)
    assert place == RankPlace(3, 1, 4, 2)
    assert place.first_rank == 2


def test_without_local_names_all_ranks_are_on_one_machine() -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert read_place({name: _ENVIRONMENT[name] for name in names}) == RankPlace(3, 3, 4, 4)


def test_a_process_of_its_own_has_no_place() -> None:
    assert read_place({}) is None
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert read_place(_ENVIRONMENT | alone) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "4"),
        ("RANK", "-1"),
        ("WORLD_SIZE", "x"),
        ("LOCAL_RANK", ""),
        ("LOCAL_RANK", "2"),
        ("LOCAL_RANK", "4"),
    ],
)
def test_an_environment_that_is_not_torchruns_is_refused_with_the_value(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}='?{value}"):
        read_place(_ENVIRONMENT | {name: value})


def test_what_processes_cannot_do_alone_or_together_is_refused() -> None:
    for values, ranks, reason in (
        ({"parallel": "fsdp2"}, 1, "start it with --nproc"),
        ({"compile": True}, 2, "torch.compile is not available"),
        ({"model": "cnn", "parallel": "fsdp2", "channels_last": True}, 2, "parallel=ddp"),
    ):
        with pytest.raises(SettingError, match=reason):
            check_processes(resolve(values), ranks)
    check_processes(resolve({"parallel": "fsdp2"}), 2)
    check_processes(resolve({"compile": True}), 1)
