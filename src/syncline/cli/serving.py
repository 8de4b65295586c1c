"""`syncline serve`."""

import asyncio
import resource
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer

from syncline.cli.configuring import ConfigOption, SetOption, effective_config
from syncline.cli.output import JsonFlag, Output
from syncline.console import load_pages
from syncline.server import logs
from syncline.server.app import Announcement, Router
from syncline.server.settings import Settings


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """The faster one if it is installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    return cast(asyncio.AbstractEventLoop, import_module("uvloop").new_event_loop())


def _allow_many_files() -> None:
    """As many as this user may have: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="The data folder [store.folder].")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [http.host].")] = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", help="Port; 0 for a free one [http.port].")
    ] = None,
    smp_port: Annotated[
        int | None, typer.Option("--smp-port", help="Port for SMP; 0 for a free one [smp.port].")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="auto, log, journal or memory [store.kind].")
    ] = None,
    recompute_digests: Annotated[
        bool,
        typer.Option(
            "--recompute-digests",
            help="First compare all sets of services with their digests [smp.recompute_digests].",
        ),
    ] = False,
    file: ConfigOption = None,
    sets: SetOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Start a router; it stops on Ctrl-C or SIGTERM and loses nothing that it acknowledged."""
    given = {
        "store.folder": data,
        "http.host": host,
        "http.port": port,
        "smp.port": smp_port,
        "store.kind": store,
        "smp.recompute_digests": "true" if recompute_digests else None,
    }
    flags = {key: str(value) for key, value in given.items() if value is not None}
    settings = effective_config(file, flags, sets).settings
    log = logs.set_up(
        is_json=_logs_json(settings), level=settings.log_level, with_ids=settings.log_ids
    )
    output = Output(is_json=is_json)

    async def run() -> int:
        router = Router(settings, log, lambda facts: _announce(output, facts), load_pages())
        return await router.run()

    _allow_many_files()
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        code = runner.run(run())
    raise typer.Exit(code)


def _logs_json(settings: Settings) -> bool:
    return settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )


def _announce(output: Output, facts: Announcement) -> None:
    if output.is_json:
        output.json(
            {
                "event": "serving",
                "url": facts.url,
                "smp": facts.smp_address,
                "folder": facts.folder,
                "streams": facts.stream_count,
                "damaged_places": facts.damage_count,
            }
        )
        return
    output.line("Syncline serves", style="bold green")
    output.line(f"  pages   {facts.url} and {facts.url}console")
    output.line(f"  API     {facts.url}api")
    if facts.smp_address:
        output.line(f"  SMP     {facts.smp_address}")
    count = "counting its" if facts.stream_count is None else facts.stream_count
    if facts.folder is None:
        output.line("  data    in memory alone; all of it is gone when the router stops")
    else:
        output.line(f"  data    {facts.folder} ({count} queues and documents)")
    if facts.damage_count:
        output.line(
            f"  damage  in {facts.damage_count} places; what is whole is served, "
            "`syncline inspect` says more",
            style="bold red",
        )
    sys.stdout.flush()
