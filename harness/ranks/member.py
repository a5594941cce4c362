"""One process as a rank of a run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from harness.ranks.commands import RankCommands, RankInbox
from harness.ranks.consent import RankConsent
from harness.ranks.store import RankStore
from harness.records.ranks import RankPart, RankPlace
from harness.store.folder import RunFolder


class RankMember(NamedTuple):
    """A rank: its place, its inbox, the source of its commands, and its part in changes of settings."""

    place: RankPlace
    inbox: RankInbox
    commands: RankCommands
    consent: RankConsent

    @classmethod
    def join(cls, place: RankPlace, folder: RunFolder, environ: Mapping[str, str]) -> Self:
        """Connect to the other ranks. Raises RuntimeError when there is no store at the address that torchrun
        gave."""
        inbox, store = RankInbox(), RankStore.connect(environ, place)
        return cls(place, inbox, RankCommands(folder, inbox, store), RankConsent(store))


def common_folder(
    place: RankPlace, environ: Mapping[str, str], create: Callable[[RankPart], RunFolder]
) -> RunFolder:
    """Return the folder of this rank in the run of this machine's ranks, which the first of them creates.

    Raises UsageError when the other ranks cannot see it, and what `create` raises.
    """
    store = RankStore.connect(environ, place)
    if place.local_rank:
        return store.shared_folder()
    folder = create(place.part(store.group_id()))
    store.share_folder(folder)
    return folder
