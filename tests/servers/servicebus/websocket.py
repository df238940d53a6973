"""AMQP over WebSockets, in front of the stand-in's own port."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

_PATH = "/$servicebus/websocket"
_CHUNK = 65_536


async def serve(port: int, amqp_port: int) -> web.AppRunner:
    """Listen on a loopback port, and pass bytes on to another."""

    async def bridge(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=["AMQPWSB10"], max_msg_size=0)
        await socket.prepare(request)
        reader, writer = await asyncio.open_connection("127.0.0.1", amqp_port)

        async def downwards() -> None:
            while data := await reader.read(_CHUNK):
                await socket.send_bytes(data)
            await socket.close()

        task = asyncio.create_task(downwards())
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                writer.write(message.data)
        writer.close()
        await task
        return socket

    app = web.Application()
    app.router.add_get(_PATH, bridge)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner
