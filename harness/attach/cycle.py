"""The optimizer steps that make one training step, where a script has several optimizers."""

from collections.abc import Callable

# Steps in a row with which one that was ignored comes back.
_TURN = 3
# Further steps of a member with a batch that wait for the others: a critic usually has five per batch.
_MOST_REPEATS = 10


class UpdateCycle:
    """Learns which optimizers step in each iteration; the last of them ends the training step.

    Keys identify optimizers. An optimizer that steps a second time while others of the cycle are missing, or
    a new batch in that situation, removes those: they do not step in every iteration. With a batch of a
    loader, a few further steps wait for the others: a critic may be updated several times. Such steps of the
    one that has ended the iteration, before the next batch, belong to the next iteration: a penalty of the
    gradients is often updated apart, every few iterations. Where one of those alone steps with a batch, as
    two that take turns, the next batch ends the training step. The first iteration also waits for those that
    are expected in it.

    One that is new after the end of an iteration is a candidate: it joins if it steps again after the next
    iteration, is ignored if two pass without it, as the delayed policy of TD3, and replaces the others if it
    steps twice in a row, as in another training that follows the first. The others are the members again if
    one of them steps before the third in a row, and no batch came: the new one makes up for its delay, as the
    policy of SAC. One that was created since a member has stepped, alone and for parameters of a member, or
    for such of the same shapes, replaces the others with its first step: it trains their model further, or
    another one like it. So do several, as many as there are members. One that is ignored comes back,
    with those that it made an iteration with before, if it steps three times in a row without a batch:
    trainings may take turns, as of a policy and its value.

    Attributes:
        members: the optimizers of an iteration.
        done: those of them that have stepped in the iteration under way.
        has_batch: whether a batch was requested in it.
        has_stepped_alone: whether an optimizer that steps in some iterations has used the newest batch.
        only: the one that ends a training step by each of its own, while nothing else is to be decided.
    """

    def __init__(self, expect: Callable[[int], set[int]] = lambda _key: set()) -> None:
        """`expect` returns the keys of the others that are expected in the first iteration, which begins with
        the step of the one with the given key."""
        self._expect = expect
        self._expected: set[int] | None = None  # None: none has stepped yet.
        self.members: set[int] = set()
        self.done: set[int] = set()
        self.has_batch = False
        self.only: int | None = None
        self.has_stepped_alone = False
        self._occasional: set[int] = set()
        # How often those of them have stepped since a member did, or a batch was requested.
        self._since_member: dict[int, int] = {}
        # Whether an iteration has ended since these members were replaced, until a second one has.
        self._replaced: dict[int, bool] = {}
        # The members of an iteration with each of those that were replaced.
        self._partners: dict[int, frozenset[int]] = {}
        # Those that were created, since a member has stepped, for parameters of one, or of the same shapes.
        self._successors: set[int] = set()
        # Whether an iteration has ended since a candidate stepped.
        self._candidates: dict[int, bool] = {}
        # Further steps of members that are in `done`, or of `_last`.
        self._repeats = 0
        # The one of several members that ended the newest iteration, if that had a batch; whether the newest
        # step of an optimizer had one.
        self._last: int | None = None
        self._is_fed = False
        # Whether a candidate that has stepped since the last iteration does not exist any more.
        self._has_lost_candidate = False

    def updated(self, key: int, *, has_batch: bool = False) -> bool:
        """Take notice of a step of an optimizer; return whether it ends the training step. `has_batch` is
        whether that step has a batch of a loader: a member that steps again before the others, as the critic
        of a GAN does several times with each batch, then waits for them, or for the next batch."""
        self._is_fed = has_batch or self.has_batch
        if key in self._occasional:
            self._since_member[key] = self._since_member.get(key, 0) + 1
            if self._since_member[key] == _TURN or key in self._replaced:
                return self._came_back(key)
            self.only = None  # The next step of a member is to be noticed.
            self.has_stepped_alone = self.has_batch
            return False
        if key in self._candidates:
            return self._came_again(key)
        if key not in self.members:
            return self._came_first(key)
        self._since_member.clear()
        self._successors.clear()
        if key in self.done:
            missing = (self.members | (self._expected or set())) - self.done
            if has_batch and missing and self._repeats < _MOST_REPEATS:
                self._repeats += 1
                return False
            self._drop_missing()
        elif key == self._last and not (self.done or self.has_batch) and self._repeats < _MOST_REPEATS:
            self._repeats += 1
            return False
        self.done.add(key)
        return self._is_over(key)

    def created(self, key: int) -> None:
        """An optimizer was created for parameters that a member has too, or for such of the same shapes."""
        self.only = None  # The next step of a member is to be noticed.
        self._successors.add(key)

    def batch_requested(self) -> bool:
        """Take notice of a new batch; return whether it ends a training step."""
        is_waiting = self.has_stepped_alone
        if self.done:
            is_waiting = True
            self._drop_missing()
            self.done.clear()
        self.has_stepped_alone = False
        self.has_batch = True
        self._since_member.clear()
        self._replaced.clear()
        self._repeats = 0
        return is_waiting

    def batch_missed(self) -> None:
        """The batch that was requested did not come: the pass over the loader is over."""
        if not (self.done or self.has_stepped_alone):
            self.has_batch = False

    def has_updated(self, key: int) -> bool:
        """Return whether an optimizer has stepped before."""
        return key in self.members or key in self._occasional or key in self._candidates

    @property
    def is_undecided(self) -> bool:
        """Return whether the first iteration waits for an optimizer that is expected in it, or one that is
        new has stepped since the last iteration and may begin another training."""
        return bool(self._expected) or self._has_lost_candidate or not all(self._candidates.values())

    def forget(self, key: int) -> None:
        """An optimizer does not exist any more."""
        for keys in (self.members, self._occasional, self.done, self._successors):
            keys.discard(key)
        self._since_member.pop(key, None)
        self._has_lost_candidate |= not self._candidates.pop(key, True)
        self._replaced.pop(key, None)
        self._partners.pop(key, None)
        if self._expected:
            self._expected.discard(key)
        if key == self.only:
            self.only = None

    def _came_first(self, key: int) -> bool:
        """Add an optimizer to the cycle, or to the candidates for it. The first one alone is the cycle, so
        that its step ends an iteration that others of the cycle then belong to."""
        self.only = None
        if self._expected is None:
            self._expected = self._expect(key)
        if not (self.has_batch or self.done):
            count = len(self._successors)
            if key in self._successors and (count == 1 or count >= len(self.members)):
                return self._replace_members(set(self._successors), key)
            if self.members:
                self._candidates[key] = False
                return False
        self._since_member.clear()
        self.members.add(key)
        self.done.add(key)
        return self._is_over(key)

    def _came_again(self, key: int) -> bool:
        """Decide on a candidate that steps a second time."""
        if self._candidates[key]:
            del self._candidates[key]
            self.members.add(key)  # Of the iteration that has just ended.
            return False
        in_order = list(self._candidates)
        since = set(in_order[in_order.index(key) :])
        self._occasional |= set(in_order) - since
        self._replaced = dict.fromkeys(self.members, False)
        return self._replace_members(since, key)

    def _came_back(self, key: int) -> bool:
        """Let one that was ignored make the steps again."""
        partners = self._partners.get(key, frozenset()) & self._occasional
        self._replaced.clear()
        return self._replace_members({key, *partners}, key)

    def _replace_members(self, members: set[int], key: int) -> bool:
        self._partners |= dict.fromkeys(self.members, frozenset(self.members))
        self._occasional = (self._occasional | self.members) - members
        self.members = members
        self._candidates.clear()
        self._since_member.clear()
        self._successors.clear()
        self.done = {key}
        return self._is_over(key)

    def _is_over(self, key: int) -> bool:
        """Return whether the step of `key` ends the iteration, and begin the next one."""
        if not self.done or self.done < self.members or (self._expected and self._expected - self.done):
            return False
        self._last = key if self._is_fed and len(self.done) > 1 else None
        self._expected, self._repeats = set(), 0
        self.done.clear()
        self.has_batch = self.has_stepped_alone = self._has_lost_candidate = False
        missing = {key for key, has_iteration_ended in self._candidates.items() if has_iteration_ended}
        self._occasional |= missing
        self._candidates = {key: True for key in self._candidates if key not in missing}
        self._replaced = {key: True for key, has_one_ended in self._replaced.items() if not has_one_ended}
        is_settled = not (self._candidates or self._replaced)
        self.only = next(iter(self.members)) if len(self.members) == 1 and is_settled else None
        return True

    def _drop_missing(self) -> None:
        self._occasional |= self.members - self.done
        self.members, self._expected = set(self.done), set()
