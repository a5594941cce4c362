"""The logs of the ranks of one run."""

from pathlib import Path

from harness.store.folder import RunFolder


def test_a_run_of_one_process_has_the_log_of_rank_0(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.rank_logs() == {}
    folder.log.touch()
    assert folder.rank_logs() == {0: folder.log}
    assert folder.rank_log(0) == folder.log


def test_logs_are_in_the_order_of_ranks(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for rank in (10, 2, 0):
        folder.rank_log(rank).touch()
    assert list(folder.rank_logs().items()) == [(rank, folder.rank_log(rank)) for rank in (0, 2, 10)]


def test_foreign_names_links_and_folders_are_no_logs_of_ranks(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("log.rank0.sqlite3", "log.rank01.sqlite3", "log.rank-1.sqlite3", "log.rank\u0663.sqlite3"):
        (tmp_path / name).touch()
    folder.rank_log(3).mkdir()
    folder.rank_log(4).symlink_to(tmp_path / "log.rank01.sqlite3")
    assert folder.rank_logs() == {}
