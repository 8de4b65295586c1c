"""A client that repairs what differs from its router, with everything that may happen meanwhile.

The steps are those of specs/Drift.tla, so the number of states is the same; but what is done about
each id, and what an answer means, is decided by the code itself (`repair_plan`).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal, TypeAlias

from syncline.client.smp.repair_plan import (
    Action,
    Answer,
    Effect,
    Known,
    Side,
    action_for,
    effect_of,
)

Id: TypeAlias = int
Ids: TypeAlias = frozenset[Id]
# What is on the wire: a word and an id; or what is asked about, or told of, a set.
Command: TypeAlias = Literal["new", "sub", "del", "bus", "read", "state"]
Message: TypeAlias = Literal["made", "sok", "auth", "busy", "gone", "end", "list", "set"]
NONE: Ids = frozenset()


@dataclass(frozen=True, slots=True)
class Letter:
    word: Command | Message
    id: Id = -1
    part: Ids = NONE
    ids: Ids = NONE
    is_right: bool = True


# Of an id: who alone has it, or, if it was decided too early, what was decided.
Task: TypeAlias = tuple[Side | Action, Id]


@dataclass(frozen=True, slots=True)
class Bounds:
    ids: int
    # Those of them that are there at the start, and in the older states.
    live: int
    changes: int
    faults: int
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """What the client does. The first two are the code's; a test breaks one at a time."""

    decide: Callable[[Side, Known | None], Action] = action_for
    understand: Callable[[Answer], Effect] = effect_of
    looks_again: bool = True
    waits_for_creations: bool = True
    checks_lists: bool = True
    waits_for_answers: bool = True
    verifies: bool = True


@dataclass(frozen=True, slots=True)
class State:
    # The router: its queues, those of the service, those whose digest it keeps, those that another
    # connection has.
    alive: Ids
    theirs: Ids
    kept: Ids
    taken: Ids
    # The store, and of what was told on this connection that it cannot be had.
    known: Ids
    wanted: Ids
    ours: Ids
    failed: Ids
    fresh: Ids
    up: tuple[Letter, ...] = ()
    down: tuple[Letter, ...] = ()
    # The repair.
    phase: Literal["idle", "asking", "fixing", "checking"] = "idle"
    snap: Ids = NONE
    todo: frozenset[Task] = frozenset()
    has_acted: bool = False
    round: int = 0
    result: Literal["none", "equal", "failed"] = "none"
    # Since it began: no fault that nobody is told of, and nothing else at all.
    is_clean: bool = True
    is_calm: bool = False
    harm: frozenset[str] = frozenset()
    changes: int = 0
    faults: int = 0

    def is_subscribing(self, id_: Id) -> bool:
        return any(each.id == id_ and each.word == "sub" for each in self.up) or any(
            each.id == id_ and each.word in ("sok", "auth", "busy") for each in self.down
        )

    def is_deleting(self, id_: Id) -> bool:
        return Letter("del", id_) in self.up or Letter("gone", id_) in self.down

    def is_creating(self) -> bool:
        return any(each.word == "new" for each in self.up) or any(
            each.word == "made" for each in self.down
        )

    def is_live(self, id_: Id) -> bool:
        """The client takes it for associated, or is about to."""
        return (
            id_ in self.wanted & self.ours
            or Letter("made", id_) in self.down
            or (id_ in self.wanted and Letter("sok", id_) in self.down)
        )

    def pending(self) -> Ids:
        waiting = self.wanted - self.ours - self.failed
        return frozenset(id_ for id_ in waiting if not self.is_subscribing(id_))

    def with_theirs(self, theirs: Ids) -> "State":
        """Digests are kept by XOR: an id that comes twice is as one that does not."""
        return replace(self, theirs=theirs, kept=self.kept ^ (self.theirs ^ theirs))

    def told(self, letter: Letter) -> "State":
        return replace(self, down=(*self.down, letter))

    def sent(self, letter: Letter) -> "State":
        return replace(self, up=(*self.up, letter))

    def ended(self, result: Literal["none", "equal", "failed"]) -> "State":
        return replace(
            self,
            phase="idle",
            snap=NONE,
            todo=frozenset(),
            has_acted=False,
            round=0,
            result=result,
        )


Step: TypeAlias = tuple[str, State]


@dataclass(frozen=True, slots=True)
class World:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)

    @property
    def ids(self) -> range:
        return range(self.bounds.ids)

    @property
    def live(self) -> Ids:
        return frozenset(range(self.bounds.live))

    def first(self) -> State:
        live = self.live
        fresh = frozenset(self.ids) - live
        return State(live, live, live, NONE, live, live, live, NONE, fresh)

    def steps(self, here: State) -> Iterator[Step]:
        yield from self._changes(here)
        yield from self._subscriptions(here)
        if here.up:
            yield "serve", self._serve(here)
        if here.kept != here.theirs:
            yield "walk", replace(here, kept=here.theirs)
        yield from self._takes(here)
        yield from self._repair(here)
        if here.faults < self.bounds.faults:
            damaged = replace(here, faults=here.faults + 1, is_calm=False)
            yield from self._disturbances(replace(damaged, is_clean=False))
            yield from self._faults(damaged)

    # --------------------------------------------------------------------------- the application

    def _changes(self, here: State) -> Iterator[Step]:
        if here.changes == self.bounds.changes:
            return
        there = replace(here, changes=here.changes + 1, is_calm=False)
        for id_ in here.fresh:
            yield "create", replace(there, fresh=here.fresh - {id_}).sent(Letter("new", id_))
        for id_ in here.known:
            if here.is_deleting(id_):
                continue
            yield "delete", replace(there, wanted=here.wanted - {id_}).sent(Letter("del", id_))
            if id_ not in here.wanted or id_ in here.failed:
                wanted, failed = here.wanted | {id_}, here.failed - {id_}
                yield "want", replace(there, wanted=wanted, failed=failed)

    def _subscriptions(self, here: State) -> Iterator[Step]:
        for id_ in here.pending():
            yield "subscribe", replace(here, is_calm=False).sent(Letter("sub", id_))

    # -------------------------------------------------------------------------------- the router

    def _serve(self, here: State) -> State:
        letter, id_ = here.up[0], here.up[0].id
        there = replace(here, up=here.up[1:])
        match letter.word:
            case "new":
                there = replace(there, alive=here.alive | {id_})
                return there.with_theirs(here.theirs | {id_}).told(Letter("made", id_))
            case "sub" if id_ in here.alive:
                there = replace(there, taken=here.taken - {id_})
                return there.with_theirs(here.theirs | {id_}).told(Letter("sok", id_))
            case "sub":
                return there.told(Letter("auth", id_))
            case "del":
                return self._without(there, id_).told(Letter("gone", id_))
            case "bus":
                if id_ in here.theirs and here.is_live(id_):
                    there = replace(there, harm=here.harm | {"live"})
                return there.with_theirs(here.theirs - {id_})
            case "read":
                found = Letter("list", part=letter.part, ids=here.theirs & letter.part)
                return replace(there, kept=here.theirs).told(found)
            case "state":
                return there.told(Letter("set", ids=here.theirs))
            case _:
                raise AssertionError(letter)

    def _without(self, here: State, id_: Id) -> State:
        there = replace(here, alive=here.alive - {id_}, taken=here.taken - {id_})
        return there.with_theirs(here.theirs - {id_})

    # -------------------------------------------------------------------------------- the client

    def _takes(self, here: State) -> Iterator[Step]:
        """Answers to questions come aside: the first of those, or the first of the others."""
        kinds: set[bool] = set()
        for at, letter in enumerate(here.down):
            is_aside = letter.word in ("list", "set")
            if is_aside not in kinds:
                kinds.add(is_aside)
                there = replace(here, down=here.down[:at] + here.down[at + 1 :])
                yield f"take {letter.word}", self._take(there, letter)

    def _take(self, here: State, letter: Letter) -> State:
        id_ = letter.id
        match letter.word:
            case "list":
                return self._take_list(here, letter)
            case "set":
                is_equal = letter.ids == here.ours
                return here.ended("equal") if is_equal else self._next_round(here)
            case "made":
                return replace(
                    here,
                    known=here.known | {id_},
                    wanted=here.wanted | {id_},
                    ours=here.ours | {id_},
                )
            case "gone":
                return replace(
                    here,
                    known=here.known - {id_},
                    wanted=here.wanted - {id_},
                    ours=here.ours - {id_},
                    failed=here.failed - {id_},
                )
            case _ if id_ not in here.known:
                return here
            case "end":
                return replace(here, ours=here.ours - {id_}, failed=here.failed | {id_})
            case "sok":
                return self._take_answer(here, id_, Answer.ASSOCIATED)
            case "auth":
                return self._take_answer(here, id_, Answer.REFUSED)
            case "busy":
                return self._take_answer(here, id_, Answer.LATER)
            case _:
                raise AssertionError(letter)

    def _take_answer(self, here: State, id_: Id, answer: Answer) -> State:
        effect = self.rules.understand(answer)
        ours, failed = here.ours, here.failed
        if answer is Answer.ASSOCIATED:
            ours, failed = ours | {id_}, failed - {id_}
        if effect.is_dissociated:
            ours -= {id_}
        if effect.is_told and not effect.waits:
            failed |= {id_}
        return replace(here, ours=ours, failed=failed)

    # -------------------------------------------------------------------------------- the repair

    def _repair(self, here: State) -> Iterator[Step]:
        if here.phase == "idle":
            is_calm = not here.up and not here.down
            there = replace(here, round=1, result="none", is_clean=True, is_calm=is_calm)
            yield "begin", self._begin_round(there)
        elif here.phase == "fixing" and here.todo:
            for task in here.todo:
                fixed = self._fix(replace(here, todo=here.todo - {task}), task)
                if fixed is not None:
                    yield "fix", fixed
        elif here.phase == "fixing" and (
            not self.rules.waits_for_answers or not any(map(here.is_subscribing, self.ids))
        ):
            is_asked = here.has_acted and self.rules.verifies
            asked = replace(here, phase="checking").sent(Letter("state"))
            yield "compare", asked if is_asked else here.ended("equal")

    def _begin_round(self, here: State) -> State:
        """The first question is about the first id, the second about the others."""
        there = replace(here, phase="asking", snap=here.ours, todo=frozenset(), has_acted=False)
        return there.sent(Letter("read", part=frozenset({0})))

    def _next_round(self, here: State) -> State:
        if here.round == self.bounds.rounds:
            return here.ended("failed")
        return self._begin_round(replace(here, round=here.round + 1))

    def _take_list(self, here: State, found: Letter) -> State:
        if self.rules.checks_lists and not found.is_right:
            return self._next_round(here)
        tasks: set[Task] = {(Side.ROUTER, id_) for id_ in found.ids - here.snap}
        tasks |= {(Side.AGENT, id_) for id_ in (here.snap & found.part) - found.ids}
        if not self.rules.looks_again:
            tasks = {(self._action(here, task), task[1]) for task in tasks}
        there = replace(here, todo=here.todo | tasks)
        rest = frozenset(self.ids) - {0}
        if found.part == {0} and rest:
            return there.sent(Letter("read", part=rest))
        return replace(there, phase="fixing")

    def _action(self, here: State, task: Task) -> Action:
        side, id_ = task
        if isinstance(side, Action):
            return side
        known = None
        if id_ in here.known:
            known = Known(id_ in here.wanted, id_ in here.ours, id_ in here.failed)
        return self.rules.decide(side, known)

    def _fix(self, here: State, task: Task) -> State | None:
        """None: it has to wait."""
        action, id_ = self._action(here, task), task[1]
        there = replace(here, has_acted=here.has_acted or action is not Action.NOTHING)
        match action:
            case Action.NOTHING:
                return there
            case Action.KEEP:
                return replace(there, ours=here.ours | {id_})
            case Action.DROP:
                return replace(there, ours=here.ours - {id_})
            case Action.RELEASE:
                if self.rules.waits_for_creations and here.is_creating():
                    return None
                return there.sent(Letter("bus", id_))
            case Action.ASSOCIATE:
                harm = here.harm.union(self._harm_of(here, id_))
                return replace(there, harm=harm).sent(Letter("sub", id_))

    def _harm_of(self, here: State, id_: Id) -> Iterator[str]:
        if id_ in here.known - here.wanted and not here.is_deleting(id_):
            yield "unwanted"
        if id_ in here.failed & here.taken:
            yield "taken"

    # ------------------------------------------------------------------------------------ faults

    def _disturbances(self, here: State) -> Iterator[Step]:
        """Nobody is told of these."""
        live = self.live
        cut = replace(here, up=(), down=(), failed=NONE)
        cut = cut if here.phase == "idle" else cut.ended("none")
        yield "break", cut
        yield (
            "restore the router",
            replace(cut, alive=live, theirs=live, kept=live, taken=NONE),
        )
        yield "lose associations", replace(cut, theirs=NONE, kept=NONE, taken=NONE)
        yield "restore the client", replace(cut, known=live, wanted=live, ours=live)
        for ids in subsets(frozenset(self.ids)):
            if ids != here.kept:
                yield "damage", replace(here, kept=ids)

    def _faults(self, here: State) -> Iterator[Step]:
        """These a repair has to cope with."""
        for id_ in here.alive:
            there = self._without(here, id_)
            yield "remove", there.told(Letter("gone", id_)) if id_ in here.theirs else there
        for id_ in here.theirs:
            there = replace(here, taken=here.taken | {id_}).with_theirs(here.theirs - {id_})
            yield "take away", there.told(Letter("end", id_))
        if here.up and here.up[0].word == "sub":
            there = replace(here, up=here.up[1:])
            yield "say nothing", there
            yield "refuse", there.told(Letter("busy", here.up[0].id))
        for at, letter in enumerate(here.down):
            if letter.word == "list":
                for ids in subsets(letter.part):
                    if ids != letter.ids:
                        wrong = replace(letter, ids=ids, is_right=False)
                        yield (
                            "mislead",
                            replace(here, down=(*here.down[:at], wrong, *here.down[at + 1 :])),
                        )


def subsets(ids: Ids) -> Iterator[Ids]:
    for count in range(len(ids) + 1):
        yield from map(frozenset, combinations(ids, count))


def check(here: State) -> None:
    assert "live" not in here.harm, "what is in use is not let go of"
    assert "unwanted" not in here.harm, "what is to go is not brought back"
    assert "taken" not in here.harm, "what others took is left to them"
    assert here.theirs <= here.alive, "only what is there is associated"
    assert here.ours <= here.known, "only what is known is associated"
    assert here.result != "failed" or not here.is_calm, "undisturbed, it succeeds"
    if here.phase == "idle" and not here.up and not here.down:
        check_rest(here)


def check_rest(here: State) -> None:
    if here.result == "equal" and here.is_clean:
        assert here.ours == here.theirs, "both have the same"
        assert here.kept == here.theirs, "the digest is the one of the set"
        if not here.pending():
            owed = (here.wanted & here.alive) - here.taken
            assert owed <= here.theirs, "what is wanted delivers"


def explore(bounds: Bounds, rules: Rules | None = None) -> int:
    """All states within the bounds; raises with the steps that lead to a broken rule."""
    world = World(bounds, rules or Rules())
    first = world.first()
    seen = {first}
    waiting: deque[tuple[State, tuple[str, ...]]] = deque([(first, ())])
    while waiting:
        here, path = waiting.popleft()
        for name, there in world.steps(here):
            if there in seen:
                continue
            try:
                check(there)
            except AssertionError as error:
                raise AssertionError(f"{error}; after {', '.join([*path, name])}") from error
            seen.add(there)
            waiting.append((there, (*path, name)))
    return len(seen)
