"""What to do about an id that only one side has. Pure: plain values in, plain values out.

The lists of a difference are old when they arrive, and queues are made and deleted meanwhile. So
every id is looked at once more, as it stands in the store in the moment something is sent for it:

    only the router has it    unknown here                             let go of it there
                              associated by now                        nothing
                              not wanted                               let go of it there
                              taken by another connection meanwhile    nothing
                              wanted                                   keep it: an answer was lost
    only we have it           not associated any more, or unknown      nothing
                              wanted                                   associate it again
                              not wanted                               let go of it here

What always holds, whatever happens meanwhile:
- What is wanted here is never let go of at the router.
- What is gone from here, or not wanted, is never associated again.
- What another connection has taken is not taken back.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never


class Side(Enum):
    """Who alone has an id, by the lists."""

    ROUTER = "router"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Known:
    """How an id that the store has stands there."""

    is_wanted: bool
    is_associated: bool
    # Another connection has subscribed to it since the lists were asked for.
    has_ended: bool = False


class Action(Enum):
    NOTHING = "nothing"
    # Associate it in the store.
    KEEP = "keep"
    # SUB or NSUB.
    ASSOCIATE = "associate"
    # BUS.
    RELEASE = "release"
    # Dissociate it in the store.
    DROP = "drop"


def action_for(side: Side, known: Known | None) -> Action:
    """`known` is None for an id that the store does not have."""
    match side:
        case Side.ROUTER:
            return _of_router(known)
        case Side.AGENT:
            return _of_agent(known)
        case _:
            assert_never(side)


def _of_router(known: Known | None) -> Action:
    if known is None:
        return Action.RELEASE
    if known.is_associated:
        return Action.NOTHING
    if not known.is_wanted:
        return Action.RELEASE
    # With the other connection the router has taken it out of the service; the list is older.
    return Action.NOTHING if known.has_ended else Action.KEEP


def _of_agent(known: Known | None) -> Action:
    if known is None or not known.is_associated:
        return Action.NOTHING
    return Action.ASSOCIATE if known.is_wanted else Action.DROP


# ----------------------------------------------------------------------------------------- answers


class Answer(Enum):
    """What the router says to a subscription that was to associate an id again."""

    # It belongs to our service.
    ASSOCIATED = "associated"
    # It is subscribed, and belongs to no service, or to another one.
    ALONE = "alone"
    # It is not ours, is blocked, or is no more.
    REFUSED = "refused"
    # Not now.
    LATER = "later"
    # Nobody knows; the next comparison tells.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of the id here."""

    is_dissociated: bool = False
    # The application is told that it failed.
    is_told: bool = False
    # It is asked for again after a while, as every queue that waits.
    waits: bool = False


_EFFECTS = {
    Answer.ASSOCIATED: Effect(),
    Answer.ALONE: Effect(is_dissociated=True),
    Answer.REFUSED: Effect(is_dissociated=True, is_told=True),
    # The router does not have it, and that is what the store says until it has.
    Answer.LATER: Effect(is_dissociated=True, is_told=True, waits=True),
    Answer.NONE: Effect(),
}


def effect_of(answer: Answer) -> Effect:
    return _EFFECTS[answer]


# ------------------------------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did. `is_equal`: both sides have the same ids, as far as both have said."""

    is_equal: bool
    # Only we had them: associated again at the router.
    associated_count: int = 0
    # Only the router had them: they belong to the service there no more.
    dissociated_count: int = 0
    # Only the router had them, and they are wanted: associated here.
    kept_count: int = 0
    # Only we had them, and the router does not associate them, or not now: dissociated here.
    failed_count: int = 0
    # Only we had them, and they are not wanted: dissociated here.
    dropped_count: int = 0
    rounds: int = 0
    # Questions about the sets that were answered, the one of an opening that came unasked included.
    round_trips: int = 0
    # Count and hashes in the store were not those of its ids.
    is_digest_repaired: bool = False
    # Why rounds came to nothing, for people.
    failures: tuple[str, ...] = ()
