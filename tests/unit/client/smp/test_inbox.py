"""Events for the application: messages wait for room, the rest is told or counted."""

import asyncio

import pytest

from syncline.client.smp.agent_events import (
    AgentEvent,
    EventsMissed,
    MessageDamaged,
    ServiceAll,
)
from syncline.client.smp.agent_records import Account
from syncline.client.smp.inbox import Inbox
from syncline.errors import LinkClosedError

STATES = [ServiceAll(Account(1, number)) for number in range(9)]
CONTENTS = [MessageDamaged(Account(1, 1), b"q", bytes([number]), "") for number in range(9)]


async def taken(inbox: Inbox) -> list[AgentEvent]:
    return [await inbox.take() for _ in range(len(inbox))]


async def test_events_come_in_their_common_order() -> None:
    inbox = Inbox(9, 9)
    inbox.tell(STATES[0])
    await inbox.put(CONTENTS[0])
    await inbox.put(CONTENTS[1])
    inbox.tell(STATES[1])
    assert await taken(inbox) == [STATES[0], CONTENTS[0], CONTENTS[1], STATES[1]]


async def test_message_waits_for_room_and_states_do_not() -> None:
    inbox = Inbox(1, 9)
    await inbox.put(CONTENTS[0])
    waiting = asyncio.create_task(inbox.put(CONTENTS[1]))
    await asyncio.sleep(0)
    inbox.tell(STATES[0])
    assert len(inbox) == 2
    assert await inbox.take() == CONTENTS[0]
    await waiting
    assert await taken(inbox) == [STATES[0], CONTENTS[1]]


async def test_oldest_states_are_left_out_and_told_in_their_place() -> None:
    inbox = Inbox(9, 2)
    await inbox.put(CONTENTS[0])
    for state in STATES[:5]:
        inbox.tell(state)
    await inbox.put(CONTENTS[1])
    found = [await inbox.take() for _ in range(5)]
    assert found == [CONTENTS[0], EventsMissed(3), STATES[3], STATES[4], CONTENTS[1]]


async def test_reader_waits_for_the_next_event_and_for_the_end() -> None:
    inbox = Inbox(1, 1)
    taking = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.tell(STATES[0])
    assert await taking == STATES[0]
    await inbox.put(CONTENTS[0])
    putting = asyncio.create_task(inbox.put(CONTENTS[1]))
    await asyncio.sleep(0)
    inbox.end(LinkClosedError("over"))
    with pytest.raises(LinkClosedError):
        await putting
    assert await inbox.take() == CONTENTS[0]
    with pytest.raises(LinkClosedError):
        await inbox.take()
