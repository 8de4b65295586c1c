"""Bytes that the reference implementation made, and the values that they stand for.

Ids are one byte 24 times; the session id is 00…1f, the correlation id 40…57. The Ed25519 key of the
queue is that of seed 01 32 times, X25519 keys those of 03 (queue) and 04 (router).
"""

from dataclasses import dataclass

from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import (
    Ack,
    Command,
    LinkRequest,
    New,
    Prxy,
    QueueRequest,
    Rkey,
    Send,
    Subs,
)
from syncline.wire.smp.keys import PublicKey
from syncline.wire.smp.messages import Ends, Err, Ids, Msg, Nmsg, RouterMessage, Sok, Soks

SESSION_ID = bytes(range(0x20))
CORR_ID = bytes(range(0x40, 0x58))
AA, BB, CC, DD, EE = (bytes((byte,)) * 24 for byte in (0xAA, 0xBB, 0xCC, 0xDD, 0xEE))

ED25519 = "302a300506032b65700321008a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
X25519_03 = (
    "302a300506032b656e0321005dfedd3b6bd47f6fa28ee15d969d5bb0ea53774d488bdaf9df1c6e0124b3ef22"
)
X25519_04 = (
    "302a300506032b656e032100ac01b2209e86354fb853237b5de0f4fab13c7fcbf433a61c019369617fecf10b"
)
AUTH_KEY, QUEUE_DH_KEY, DH_KEY = (
    PublicKey.decode(bytes.fromhex(encoded)) for encoded in (ED25519, X25519_03, X25519_04)
)
SIGNED_KEY = (
    f"3078302c{X25519_04}300506032b6570034100"
    "69fe6ad4d8611f6f6462879ac784e809fcfd67b954aefe25b8619077efd44305"
    "f15e06a59dccc5ccd94ecc0720191e7a4c2283040b658535ae61417f5c42460c"
)
IDS_HASH = bytes.fromhex("73c543f2fa2b96af1e7928ccfb936905")

# A service asks for queue aa: its own signature, the signature of the queue, and all of it.
SUB_UNAUTHORIZED = f"18{CORR_ID.hex()}18{AA.hex()}535542"
SUB_AUTHORIZATION = bytes.fromhex(
    "3d466c276f0feac489a5ad7686b54801fd1f07c03696d9852b49ffa79c853447"
    "6649dc9c8df7b3613ab2fe9e1192c7810199f9906aca77cd3936347076784906"
)
SUB_AUTHENTICATOR = bytes.fromhex(
    "8225d9087b6767dc02f0c7f397d06a2dbf753370d8d853a5c93b97e79b567a7a"
    "e01b260ee43a74a5fadc00d6f302ad3cbec9f2cdbb5065df9f9e41ddb28d2510f8893b22756c76cb54208c4790876a59"
)
QUEUE_SIGNATURE = bytes.fromhex(
    "bb86902ec7e30bc3083368208ac15efbbf14a5f6c6872f46271d6ccbe15cac75"
    "28e039ff28c7737e0ec2cae8320e62995c8caf219db05fbc72f79ceebdce3e0f"
)
SERVICE_SIGNATURE = bytes.fromhex(
    "6e55650856cdbd7d8cffb35d83ec14a016cab6241a74679d2f1c1d29f49d2b1d"
    "ec4004df4fcb0dfaffe4512fa86649ad331e42e9308878b2ef0474b64ea5850f"
)
SUB_OF_SERVICE = bytes.fromhex(
    f"40{QUEUE_SIGNATURE.hex()}3140{SERVICE_SIGNATURE.hex()}{SUB_UNAUTHORIZED}"
)
PING_CONTENT = bytes.fromhex(f"01001f0018{CORR_ID.hex()}0050494e47")


@dataclass(frozen=True)
class OfCommand:
    name: str
    versions: range
    command: Command
    encoded: str


@dataclass(frozen=True)
class OfMessage:
    name: str
    versions: range
    message: RouterMessage
    encoded: str


FROM_6 = range(6, 21)
_KEYS = f"2c{ED25519}2c{X25519_04}"
_MESSAGING = QueueRequest(QueueMode.MESSAGING)
_CONTACT = QueueRequest(QueueMode.CONTACT)
_LINK = QueueRequest(QueueMode.CONTACT, LinkRequest(CC, DD, b"fix", b"user"))
_ADDRESS = RouterAddress(b"\x09" * 32, ("a.example", "b.example"))

COMMANDS = [
    OfCommand(
        "SUBS",
        range(19, 21),
        Subs(2, IDS_HASH),
        "535542532000000000000000021073c543f2fa2b96af1e7928ccfb936905",
    ),
    OfCommand("NEW messaging v6", range(6, 9), New(AUTH_KEY, DH_KEY), f"4e455720{_KEYS}53"),
    OfCommand(
        "NEW messaging v9",
        range(9, 15),
        New(AUTH_KEY, DH_KEY, request=_MESSAGING),
        f"4e455720{_KEYS}305354",
    ),
    OfCommand(
        "NEW messaging v15",
        range(15, 17),
        New(AUTH_KEY, DH_KEY, request=_MESSAGING),
        f"4e455720{_KEYS}3053314d30",
    ),
    OfCommand(
        "NEW messaging v17",
        range(17, 21),
        New(AUTH_KEY, DH_KEY, request=_MESSAGING),
        f"4e455720{_KEYS}3053314d3030",
    ),
    OfCommand(
        "NEW contact with a password v6",
        range(6, 9),
        New(AUTH_KEY, DH_KEY, b"pw", subscribes=False),
        f"4e455720{_KEYS}4102707743",
    ),
    OfCommand(
        "NEW contact with a password v17",
        range(17, 21),
        New(AUTH_KEY, DH_KEY, b"pw", subscribes=False, request=_CONTACT),
        f"4e455720{_KEYS}310270774331433030",
    ),
    OfCommand(
        "NEW contact with a link",
        range(17, 21),
        New(AUTH_KEY, DH_KEY, request=_LINK),
        f"4e455720{_KEYS}305331433118{CC.hex()}18{DD.hex()}000366697800047573657230",
    ),
    OfCommand(
        "RKEY", FROM_6, Rkey((AUTH_KEY, QUEUE_DH_KEY)), f"524b455920022c{ED25519}2c{X25519_03}"
    ),
    OfCommand("ACK", FROM_6, Ack(CORR_ID), f"41434b2018{CORR_ID.hex()}"),
    OfCommand("SEND", FROM_6, Send(b"T", b"hello"), "53454e4420542068656c6c6f"),
    OfCommand(
        "PRXY",
        range(8, 21),
        Prxy(_ADDRESS, b"pw"),
        "50525859200209612e6578616d706c6509622e6578616d706c65043532323320"
        "090909090909090909090909090909090909090909090909090909090909090931027077",
    ),
]

_IDS = f"4944532018{AA.hex()}18{BB.hex()}2c{X25519_04}"

MESSAGES = [
    OfMessage(
        "SOKS v19",
        range(19, 21),
        Soks(2, IDS_HASH),
        "534f4b532000000000000000021073c543f2fa2b96af1e7928ccfb936905",
    ),
    OfMessage("SOKS v18", range(16, 19), Soks(2), "534f4b53200000000000000002"),
    OfMessage(
        "ENDS v19",
        range(19, 21),
        Ends(2, IDS_HASH),
        "454e44532000000000000000021073c543f2fa2b96af1e7928ccfb936905",
    ),
    OfMessage("SOK without a service", range(16, 21), Sok(), "534f4b2030"),
    OfMessage("SOK of a service", range(16, 21), Sok(EE), f"534f4b203118{EE.hex()}"),
    OfMessage(
        "IDS v17",
        range(17, 21),
        Ids(AA, BB, DH_KEY, QueueMode.MESSAGING, service_id=EE),
        f"{_IDS}314d303118{EE.hex()}30",
    ),
    OfMessage("IDS v9", range(9, 15), Ids(AA, BB, DH_KEY, QueueMode.MESSAGING), f"{_IDS}54"),
    OfMessage("NMSG", FROM_6, Nmsg(CORR_ID, b"meta"), f"4e4d534720{CORR_ID.hex()}046d657461"),
    OfMessage("MSG", FROM_6, Msg(CORR_ID, b"body"), f"4d53472018{CORR_ID.hex()}626f6479"),
    OfMessage(
        "ERR BLOCKED",
        range(18, 21),
        Err(failures.blocked("spam", 60)),
        "45525220424c4f434b454420726561736f6e3d7370616d2c6e6f746963653d7b2274746c223a36307d",
    ),
    OfMessage(
        "ERR PROXY BROKER RESPONSE",
        FROM_6,
        Err(failures.proxy_broker("RESPONSE", b"BLOCK")),
        "4552522050524f58592042524f4b455220524553504f4e53452005424c4f434b",
    ),
]
