"""The command line. Library modules are imported inside the commands: `--help` must be instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodeploy.cli.exits import guarded

app = typer.Typer(
    name="autodeploy",
    help="Which parallel plan trains this model on this cluster fastest, does it fit, why, and how sure is that.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

GbsOption = Annotated[int | None, typer.Option("--gbs", min=1, help="Sequences per step, instead of the file's.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The answer as JSON on stdout.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from autodeploy.formats.document import tool_version

        typer.echo(f"autodeploy {tool_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read the options that stand before a command."""
    del version


@app.command()
@guarded
def search(
    space: Annotated[Path, typer.Argument(metavar="SPACE", help="Space file (.toml, .yaml or .json).")],
    top: Annotated[int, typer.Option(min=1, help="Plans to rank.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Keep the answer as a plan document (JSON).")] = None,
    gbs: GbsOption = None,
    engine: Annotated[str, typer.Option(help="How to search: exact.")] = "exact",
    seed: Annotated[int, typer.Option(min=0, help="Kept with the answer; the exact engine draws no numbers.")] = 0,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds after which to stop and state the gap.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Rank the parallel plans of a space."""
    from autodeploy.cli.search import run_search

    return run_search(space, top=top, out=out, gbs=gbs, engine=engine, seed=seed, timeout_s=timeout, as_json=json)


@app.command()
@guarded
def explain(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="FILE, FILE#RANK, or a short form with --space.")],
    space: Annotated[Path | None, typer.Option(help="Space file of a short form.")] = None,
    gbs: GbsOption = None,
    json: JsonOption = False,
) -> int:
    """Show one plan term by term, and how it differs from the runner-up (or from the best)."""
    from autodeploy.cli.explain import run_explain

    return run_explain(plan, space, gbs=gbs, as_json=json)


@app.command()
@guarded
def models(
    name: Annotated[str | None, typer.Argument(help="A model of the catalog, or a model file.")] = None,
    json: JsonOption = False,
) -> int:
    """List the models, or show one with its parameter counts."""
    from autodeploy.cli.entries import show_models

    return show_models(name, as_json=json)


@app.command()
@guarded
def clusters(
    name: Annotated[str | None, typer.Argument(help="A cluster of the catalog, or a cluster file.")] = None,
    json: JsonOption = False,
) -> int:
    """List the clusters, or show one with the source of every number."""
    from autodeploy.cli.entries import show_clusters

    return show_clusters(name, as_json=json)


@app.command()
@guarded
def schema(
    kind: Annotated[str, typer.Argument(help="model, job, cluster, target, plan or space.")],
) -> int:
    """Print the JSON Schema of a kind of file."""
    from autodeploy.cli.entries import show_schema

    return show_schema(kind)


def main() -> None:
    """Entry point of the `autodeploy` command."""
    app()
