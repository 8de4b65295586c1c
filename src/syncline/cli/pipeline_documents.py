"""`syncline pipeline compact` and `gc-plan`: states of documents, and what could be let go of."""

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from syncline.cli.output import JsonFlag, Output
from syncline.cli.pipeline_session import (
    DEFAULT_MASTER,
    DEFAULT_TABLES,
    Jobs,
    MasterOption,
    SettingsOption,
    TablesOption,
    open_jobs,
    print_facts,
)
from syncline.cli.router_client import RouterClient
from syncline.errors import UnknownDocumentError

if TYPE_CHECKING:
    from syncline.pipeline.live_states import LiveState

CheckOption = Annotated[
    str | None,
    typer.Option("--check", help="Compare the states with those of this running router too."),
]


class _Facts(msgspec.Struct):
    incarnation: str


class _State(msgspec.Struct):
    seq: int
    state: object


def compacted(jobs: Jobs) -> dict[str, Any]:
    from syncline.pipeline.jobs.compact import compact

    return jobs.run("compact", lambda: compact(jobs.spark, jobs.tables))


def planned(jobs: Jobs) -> dict[str, Any]:
    from syncline.pipeline.jobs.gc_plan import gc_plan

    return jobs.run("gc-plan", lambda: gc_plan(jobs.spark, jobs.tables))


def compact(
    tables: TablesOption = DEFAULT_TABLES,
    check: CheckOption = None,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Fold the updates of each document into its state, and compare it with the router's own."""
    output = Output(is_json=is_json)
    client = RouterClient(check, "--check") if check is not None else None
    with open_jobs(tables, master, settings, output) as jobs:
        facts = compacted(jobs)
        if client is not None:
            facts["live"] = _compared(jobs, client)
    print_facts(output, "compact", facts)
    if facts["mismatch_count"] or facts.get("live", {}).get("mismatch_count"):
        raise typer.Exit(1)


def gc_plan(
    tables: TablesOption = DEFAULT_TABLES,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Say of each stream up to where it could be truncated, and who holds the rest."""
    output = Output(is_json=is_json)
    with open_jobs(tables, master, settings, output) as jobs:
        facts = planned(jobs)
    print_facts(output, "gc-plan", facts)


def _compared(jobs: Jobs, client: RouterClient) -> dict[str, Any]:
    from dataclasses import asdict

    from syncline.pipeline.live_states import compare_live, stored_states

    with jobs.output.count_progress("check", None) as bar:

        def ask(name: str) -> "LiveState | None":
            bar.advance(1)
            return live_state(client, name)

        return asdict(compare_live(stored_states(jobs.tables), ask))


def live_state(client: RouterClient, name: str) -> "LiveState | None":
    """What the router has of a document now; None if it does not know it.

    Raises LinkLostError, RefusedError, and MalformedMessageError for what no router answers.
    """
    from syncline.pipeline.live_states import LiveState

    path = f"/api/documents/{quote(name, safe='')}"
    try:
        facts = client.get(path)
        found = client.get(f"{path}?view=state")
    except UnknownDocumentError:
        return None
    try:
        incarnation = msgspec.convert(facts, _Facts).incarnation
        state = msgspec.convert(found, _State)
    except msgspec.MsgspecError as error:
        raise client.misunderstood() from error
    return LiveState(incarnation, state.seq, state.state)
