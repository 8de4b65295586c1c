"""An HTTP client for the API of the operator, in a process of its own.

One request is under way on each connection; all are built before the clock starts.

    python -m bench.log.http_client '{"port": …, "connections": 64, …}'
"""

import http.client
import json
import random
import re
import select
import socket
import sys
import time
from typing import Any

from bench.support.processes import BenchError, cpu_seconds

_RECEIVE_BYTES = 1 << 16
_SILENCE_SECONDS_MAX = 60
_LENGTH = re.compile(rb"content-length: (\d+)\r\n", re.IGNORECASE)


def create_queues(port: int, count: int) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    queues: list[str] = []
    for _ in range(count):
        connection.request("POST", "/api/queues", body=b'{"quota": 0}')
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 201:
            raise BenchError(f"the router answers {answer.status}: {body!r}")
        queues.append(json.loads(body)["queue"])
    connection.close()
    return queues


def append_request(queue: str, body: bytes) -> bytes:
    head = (
        f"POST /api/queues/{queue}/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/octet-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    length = _LENGTH.search(head + b"\r\n")
    return length is not None and len(body) >= int(length[1])


def run(port: int, requests: list[list[bytes]]) -> float:
    """Send each connection its requests, one after the other; return the seconds."""
    poll = select.epoll()
    links: dict[int, socket.socket] = {}
    waiting: dict[int, list[bytes]] = {}
    received: dict[int, bytes] = {}
    for own in requests:
        link = socket.create_connection(("127.0.0.1", port), 10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        links[link.fileno()] = link
        waiting[link.fileno()] = own[::-1]
        received[link.fileno()] = b""
        poll.register(link.fileno(), select.EPOLLIN)
    began = time.perf_counter()
    for descriptor, link in links.items():
        link.sendall(waiting[descriptor].pop())
    open_count = len(links)
    while open_count:
        ready = poll.poll(_SILENCE_SECONDS_MAX)
        if not ready:
            raise BenchError(f"no answer for {_SILENCE_SECONDS_MAX} s")
        for descriptor, _ in ready:
            data = links[descriptor].recv(_RECEIVE_BYTES)
            if not data:
                raise BenchError("the router closed the connection")
            received[descriptor] += data
            if not is_whole(received[descriptor]):
                continue
            if not received[descriptor].startswith(b"HTTP/1.1 201"):
                raise BenchError(f"the router answers {received[descriptor]!r:.300}")
            received[descriptor] = b""
            if waiting[descriptor]:
                links[descriptor].sendall(waiting[descriptor].pop())
            else:
                open_count -= 1
    seconds = time.perf_counter() - began
    poll.close()
    for link in links.values():
        link.close()
    return seconds


def main(task: dict[str, Any]) -> dict[str, float]:
    chance = random.Random(7)
    body = chance.randbytes(task["body_bytes"])
    queues = create_queues(task["port"], task["queue_count"])
    connections, each = task["connections"], task["message_count"] // task["connections"]
    requests = [
        [append_request(chance.choice(queues), body) for _ in range(each)]
        for _ in range(connections)
    ]
    cpu_before = cpu_seconds(task["server_pid"])
    seconds = run(task["port"], requests)
    cpu = cpu_seconds(task["server_pid"]) - cpu_before
    count = each * connections
    return {"per_second": count / seconds, "cpu_us": cpu / count * 1e6}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
