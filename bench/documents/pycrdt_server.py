"""pycrdt-websocket as its documentation runs it: an ASGI application on uvicorn, in memory.

python -m bench.documents.pycrdt_server PORT
"""

import asyncio
import sys

import uvicorn
from pycrdt.websocket import ASGIServer, WebsocketServer


async def serve(port: int) -> None:
    documents = WebsocketServer()
    config = uvicorn.Config(
        ASGIServer(documents), host="127.0.0.1", port=port, log_level="warning", ws="websockets"
    )
    async with documents:
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
