"""The devices on which runs of the home are training, whoever started them."""

from collections.abc import Mapping, Sequence

from harness.queue.placing import AUTO, QueueDevice
from harness.records.run import DeviceFacts
from harness.settings.spec import SPECS
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.supervisor import RunSummary, Supervisor

# A run that was just started holds no lock yet; it is among the newest.
_NEWEST = 20


def active_runs(home: Home, supervisor: Supervisor) -> list[RunSummary]:
    """Return the runs on this machine that are not over. Raises HomeError."""
    locked = [
        folder
        for folder in (RunFolder(home.runs_path / name) for name in home.folder_names())
        if is_alive(folder.alive)
    ]
    folders = dict.fromkeys([*locked, *home.newest(_NEWEST)])
    runs = [supervisor.summary(folder) for folder in folders if folder.request().remote is None]
    return [run for run in runs if not run.status.state.is_over and not run.is_simulated]


def occupied(
    devices: Sequence[QueueDevice], runs: Sequence[RunSummary], placed: Mapping[str, str]
) -> list[QueueDevice]:
    """Return the devices with the name of the run on each. `placed` are the devices of the runs that the
    queue started, by their ids: a run has none in its log before it trains."""
    occupants: dict[str, str] = {}
    for run in runs:
        selector = placed.get(run.run_id) or _selector(run)
        device = next((device for device in devices if _is_on(run.device, selector, device)), None)
        if device is not None:
            occupants.setdefault(device.selector, run.name)
    return [device._replace(occupant=occupants.get(device.selector)) for device in devices]


def _selector(run: RunSummary) -> str:
    """Return the device that the run requested; a script's is not known before it trains."""
    if run.script is not None or run.settings is None:
        return AUTO
    return str(run.settings.to_json().get("device", SPECS["device"].default)).strip().lower()


def _is_on(facts: DeviceFacts | None, selector: str, device: QueueDevice) -> bool:
    """Return whether a run is on the device; "auto" is the first of all."""
    if facts is not None:
        if facts.uuid is not None and device.facts.uuid is not None:
            return facts.uuid == device.facts.uuid
        return facts.torch_name == device.facts.torch_name
    uuid = (device.facts.uuid or "").lower()
    names = (device.selector.lower(), device.facts.torch_name, device.facts.kind.value, AUTO)
    return selector.lower() in names or (len(selector) > len("GPU-") and uuid.startswith(selector.lower()))
