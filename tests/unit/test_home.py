"""The home: where it is, whether it can be used, and how runs are named, found and removed."""

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import HomeError, UnknownRunError, UsageError
from harness.settings import Settings
from harness.store.folder import RunFolder, RunRequest, write_request
from harness.store.home import Home
from harness.store.mounts import file_system, is_network

_NOW = 1_767_323_045_000_000_000  # 2026-01-02 03:04:05 UTC
_SECOND = 1_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def _create(home: Home, name: str | None = None, after_s: int = 0) -> RunFolder:
    return home.create(name, Settings(), _NOW + after_s * _SECOND)


def test_the_flag_wins_over_the_environment_over_the_default(tmp_path: Path) -> None:
    environ = {"STEPSCOPE_HOME": str(tmp_path / "env")}
    assert Home.locate(str(tmp_path / "flag"), environ).path == tmp_path / "flag"
    assert Home.locate(None, environ).path == tmp_path / "env"
    assert Home.locate(None, {}).path.name == "stepscope"


def test_a_home_is_made_where_there_is_none_for_its_owner_alone(home: Home) -> None:
    home.check_writable()
    assert home.runs_path.is_dir()
    assert home.runs() == []
    folder = _create(home)
    for path in (home.path, home.runs_path, folder.path):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_home_that_was_open_to_others_is_closed_to_them(home: Home) -> None:
    home.path.mkdir(mode=0o755)
    home.runs_path.mkdir(mode=0o755)
    (home.path / ".starting").touch()  # As older versions left it.
    home.check_writable()
    assert [path.stat().st_mode & 0o777 for path in (home.path, home.runs_path)] == [0o700, 0o700]


def test_a_home_among_other_things_stays_as_open_as_it_is_and_its_runs_are_closed(home: Home) -> None:
    home.path.mkdir(mode=0o755)
    (home.path / "something of mine").touch()
    home.check_writable()
    assert [path.stat().st_mode & 0o777 for path in (home.path, home.runs_path)] == [0o755, 0o700]


def test_a_start_does_not_wait_for_ever_for_another(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", patience_s=0.05)
    home.check_writable()
    with home.starting():
        with pytest.raises(
            HomeError, match=rf"\.starting has been locked for 0.05 s by process {os.getpid()} "
        ):
            home.starting().__enter__()
        _create(home)  # Its lock is another one.


def test_a_home_that_does_not_exist_has_no_runs(home: Home) -> None:
    assert home.runs() == []
    with pytest.raises(UnknownRunError, match="There is no run 'x'"):
        home.find("x")


@pytest.mark.parametrize("where", ["home", "home/runs"])
def test_a_file_in_the_homes_place_is_refused(home: Home, tmp_path: Path, where: str) -> None:
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).write_text("not a folder")
    with pytest.raises(HomeError, match=r"is a file; choose another folder with --home"):
        home.check_writable()
    with pytest.raises(HomeError, match=r"is a file; choose another folder with --home"):
        home.runs()


def test_a_home_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match="is a file"):
        Home(tmp_path / "file" / "home").check_writable()


@pytest.fixture
def anyone() -> Iterator[Path]:
    """An empty folder that everybody can look into."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_home_that_cannot_be_written_is_refused(anyone: Path) -> None:
    home = Home(anyone)
    home.check_writable()
    home.runs_path.chmod(0o555)
    child = os.fork()
    if child == 0:  # Permissions do not bind root.
        code = 1
        try:
            if os.getuid() == 0:
                os.setuid(65_534)
            with pytest.raises(HomeError, match=r"cannot be written to .*: permission denied; choose"):
                home.check_writable()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


_TABLE = r"""27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /data rw master:1 shared:7 - nfs4 server:/export rw,vers=4.2
41 40 0:41 / /data/local rw - xfs /dev/vdb rw
42 27 0:42 / /mnt/my\040share rw - cifs //server/share rw
43 27 0:43 / /home/me/remote rw - fuse.sshfs me@there: rw
44 27 0:44 / /twice rw - nfs server:/a rw
45 27 0:45 / /twice rw - tmpfs tmpfs rw
46 27 0:46 / /host rw - 9p host rw
a line that makes no sense
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/tmp/x", "ext4", False),
        ("/data", "nfs4", True),
        ("/data/runs", "nfs4", True),
        ("/data/local/runs", "xfs", False),
        ("/database", "ext4", False),
        ("/mnt/my share/runs", "cifs", True),
        ("/home/me/remote/x", "fuse.sshfs", True),
        ("/twice/x", "tmpfs", False),
        ("/host/x", "9p", True),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str, network: bool) -> None:
    assert file_system(Path(path), _TABLE) == kind
    assert is_network(kind) == network


def test_nothing_is_known_without_a_table() -> None:
    assert file_system(Path("/tmp"), "") is None


def test_a_home_on_a_network_file_system_is_refused(home: Home) -> None:
    table = "27 1 0:27 / / rw - nfs4 server:/export rw\n"
    with pytest.raises(HomeError, match=r"network file system \(nfs4\).*--home"):
        home.check_writable(table)


def test_runs_are_listed_newest_first(home: Home) -> None:
    created = [_create(home, after_s=s) for s in (5, 1, 9)]
    (home.runs_path / "a-file").touch()
    (home.runs_path / ".trash-x").mkdir()
    assert home.runs() == [created[2], created[0], created[1]]


def test_a_run_remembers_what_was_asked_for(home: Home) -> None:
    settings = Settings(batch_size=7)
    request = home.create("my run", settings, _NOW).request()
    assert (request.name, request.created_unix_ns) == ("my run", _NOW)
    assert request.run_id.startswith("20260102-030405-")
    assert Settings(**json.loads(request.settings_json)) == settings


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "x"}', '{"name": "x", "created_unix_ns": "y"}'])
def test_a_damaged_request_hides_no_run(home: Home, text: str) -> None:
    folder, other = _create(home), _create(home, after_s=1)
    (folder.path / "request.json").write_text(text)
    assert folder.request().name == folder.run_id
    assert set(home.runs()) == {folder, other}
    assert home.find(folder.run_id) == folder


def test_names_left_out_are_the_model_and_the_next_number(home: Home) -> None:
    names = [_create(home, name).request().name for name in (None, "transformer-2", None, None)]
    assert names == ["transformer-1", "transformer-2", "transformer-3", "transformer-4"]


@pytest.mark.parametrize("name", ["taken", "  taken ", "taken\n"])
def test_a_name_that_is_taken_is_refused(home: Home, name: str) -> None:
    _create(home, "taken")
    with pytest.raises(UsageError, match="already a run named 'taken'"):
        _create(home, name)


@pytest.mark.parametrize("name", ["", "   ", "a\x00b", "a\x1b[31m", "x" * 201])
def test_a_name_that_cannot_be_shown_is_refused(home: Home, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        _create(home, name)
    assert home.runs() == []


@pytest.mark.parametrize("name", ["<b>bold</b>", "../../etc", "Überlauf 1", "a/b", "'; DROP TABLE run; --"])
def test_a_name_is_any_text_and_never_a_path(home: Home, name: str) -> None:
    folder = _create(home, name)
    assert folder.path.parent == home.runs_path
    assert folder.request().name == name
    assert home.find(name) == folder


def test_starting_many_at_once_gives_each_a_name(home: Home) -> None:
    threads = [threading.Thread(target=_create, args=(home,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {folder.request().name for folder in home.runs()} == {f"transformer-{n}" for n in range(1, 11)}


def test_a_run_is_listed_only_once_its_request_is_written(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[list[RunFolder]] = []

    def write_between_two_lists(folder: Path, request: RunRequest) -> None:
        listed.append(home.runs())
        write_request(folder, request)
        listed.append(home.runs())

    monkeypatch.setattr("harness.store.home.write_request", write_between_two_lists)
    folder = _create(home, "second")
    assert listed == [[], []]
    assert home.runs() == [folder]
    assert folder.request().run_id == folder.run_id


def test_a_start_that_was_killed_leaves_nothing_behind_the_next_one(home: Home) -> None:
    home.check_writable()
    (home.runs_path / ".new-x").mkdir()
    assert home.runs() == []
    folder = _create(home)
    assert [path for path in home.runs_path.iterdir() if path.is_dir()] == [folder.path]


def test_a_run_that_cannot_be_created_leaves_nothing_behind(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path, _request: RunRequest) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.store.home.write_request", fail)
    with pytest.raises(HomeError, match="No space left on device"):
        _create(home)
    assert not any(path.is_dir() for path in home.runs_path.iterdir())


def test_a_run_is_found_by_id_name_and_the_start_of_either(home: Home) -> None:
    first, second = _create(home, "alpha run"), _create(home, "beta", after_s=60)
    assert home.find(first.run_id) == first
    assert home.find("beta") == second
    assert home.find("alph") == first
    assert home.find(second.run_id[:13]) == second


def test_a_name_wins_over_the_start_of_another(home: Home) -> None:
    run, _ = _create(home, "cnn"), _create(home, "transformer-long")
    assert home.find("cnn") == run


def test_a_start_that_fits_several_names_them(home: Home) -> None:
    runs = [_create(home), _create(home, after_s=1)]
    with pytest.raises(UnknownRunError, match=r"matches 2 runs; use the id") as error:
        home.find("2026")
    assert all(run.run_id in str(error.value) for run in runs)
    for after_s in range(2, 6):
        _create(home, after_s=after_s)
    with pytest.raises(UnknownRunError, match=r"matches 6 runs; use the id of one: (\S+, ){5}…\."):
        home.find("2026")


def test_an_unknown_run_is_answered_with_the_nearest(home: Home) -> None:
    _create(home, "resnet-big")
    with pytest.raises(UnknownRunError, match="did you mean 'resnet-big'"):
        home.find("resnet-bgi")
    _create(home, "demo: leak", after_s=1)
    with pytest.raises(UnknownRunError, match="did you mean 'demo: leak'"):
        home.find("leak")
    with pytest.raises(UnknownRunError, match="stepscope list"):
        home.find("")


@pytest.mark.parametrize("key", ["..", "../..", "/", ".", ".lock", ".starting"])
def test_a_key_cannot_leave_the_home(home: Home, key: str) -> None:
    _create(home)
    with pytest.raises(UnknownRunError):
        home.find(key)


def test_a_removed_run_is_gone_and_its_name_free(home: Home) -> None:
    folder = _create(home, "x")
    (folder.path / "captures").mkdir()
    (folder.path / "captures" / "trace").write_text("…")
    home.remove(folder)
    home.remove(folder)
    assert home.runs() == []
    assert [path.name for path in home.runs_path.iterdir()] == [".lock"]
    _create(home, "x")


def test_of_a_run_that_is_a_link_only_the_link_is_removed(home: Home, tmp_path: Path) -> None:
    elsewhere = _create(home, "elsewhere").path.rename(tmp_path / "elsewhere")
    (home.runs_path / "link").symlink_to(elsewhere)
    (home.runs_path / "in a circle").symlink_to("in a circle")
    folders = {folder.run_id: folder for folder in home.runs()}
    assert folders["link"].request().name == "elsewhere"
    for name in ("link", "in a circle"):
        home.remove(folders[name])
    assert home.runs() == []
    assert {path.name for path in home.runs_path.iterdir()} == {".lock"}
    assert (elsewhere / "request.json").exists()


def test_what_cannot_be_deleted_is_said_with_its_reason(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _create(home)

    def fail(path: Path) -> None:
        raise OSError("Resource busy")

    monkeypatch.setattr("shutil.rmtree", fail)
    with pytest.raises(HomeError, match=r"could not be deleted: Resource busy\. The remaining files are in "):
        home.remove(folder)


def test_the_end_of_the_output_is_read_without_the_rest(home: Home) -> None:
    folder = _create(home)
    assert folder.output_tail(5) == []
    folder.output.write_bytes(b"".join(b"line %d\n" % n for n in range(100_000)) + b"broken \xff\n")
    assert folder.output_tail(3) == ["line 99998", "line 99999", "broken �"]
    assert len(folder.output_tail(20)) == 20
    assert folder.output_tail(0) == []


def test_every_file_of_a_run_lies_in_its_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    names = [p.name for p in (folder.log, folder.control, folder.output, folder.alive, folder.process)]
    assert names == ["log.sqlite3", "control.sqlite3", "harness.log", "alive", "process.json"]


def test_the_newest_runs_are_those_of_the_list_also_with_a_renamed_one(home: Home) -> None:
    folders = [home.create(None, Settings(), number * 10**12) for number in range(1, 6)]
    folders[2].path.rename(home.runs_path / "renamed")
    assert home.newest(4) == home.runs()[:4]
    assert home.newest(1) == home.runs()[:1]
    assert home.newest(9) == home.runs()
