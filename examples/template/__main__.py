"""A whole controller process: connect, register, run until SIGTERM."""

import asyncio

from examples.template.controller import register
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.controllers.run import run_until_signal


async def main(stop: asyncio.Event) -> None:
    async with Client(load_config()) as client:
        management = ControllerFactory(client)
        register(management)
        await management.start()
        await stop.wait()
        await management.stop()


if __name__ == "__main__":
    run_until_signal(main)
