"""The generator: one process that plays all writers and readers of a document server.

    python -m bench.documents.generator '{"task": "fan_out", "url": ..., "style": ..., "pid": ...}'

The last line of its output is the result as JSON. Nothing is made while a clock runs, and nothing
counts that was not looked at: a task fails unless every reader got every update.
"""

import json
import sys
from collections.abc import Awaitable, Callable

import uvloop

from bench.documents import cold_load, fan_out, idle, kill, many, stuck
from bench.documents.links import Door
from bench.documents.playing import Result, Task

TASKS: dict[str, Callable[[Door, Task], Awaitable[Result]]] = {
    "fan_out": fan_out.fan_out,
    "paced": fan_out.paced,
    "many": many.many,
    "idle": idle.idle,
    "fill": cold_load.fill,
    "load": cold_load.load,
    "kill": kill.kill,
    "survivors": kill.survivors,
    "stuck": stuck.stuck,
}


def main() -> int:
    task: Task = json.loads(sys.argv[1])
    door = Door(task["url"], task["style"])

    async def run() -> Result:
        return await TASKS[task["task"]](door, task)

    print(json.dumps(uvloop.run(run())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
