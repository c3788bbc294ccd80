"""The command line. Library modules are imported inside the commands: `--help` must be instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autodeploy.cli.exits import guarded
from autodeploy.cli.usage import OneMessage, at_least

app = typer.Typer(
    cls=OneMessage,
    name="autodeploy",
    help="Which parallel plan trains this model on this cluster fastest, does it fit, why, and how sure is that.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FROM_0: dict[str, Any] = {"callback": at_least(0)}
FROM_1: dict[str, Any] = {"callback": at_least(1)}
GbsOption = Annotated[int | None, typer.Option("--gbs", **FROM_1, help="Sequences per step, instead of the file's.")]
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
    space: Annotated[
        Path | None, typer.Argument(metavar="[SPACE]", help="Space file; or say --model, --cluster, ... instead.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the catalog, model file, or a config.json.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Cluster of the catalog, or a cluster file.")] = None,
    target: Annotated[str | None, typer.Option(help="Framework and version (default generic).")] = None,
    devices: Annotated[int | None, typer.Option(**FROM_1, help="Devices to train on.")] = None,
    seq_len: Annotated[int | None, typer.Option(**FROM_1, help="Tokens per sequence.")] = None,
    gbs: GbsOption = None,
    fix: Annotated[str, typer.Option(help="Hold fields: tp=8,pp=16.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="Keep plans with FIELD=VALUE (repeatable).")] = None,
    ban: Annotated[list[str] | None, typer.Option(help="Refuse plans with a condition: etp>1 (repeatable).")] = None,
    baseline: Annotated[str | None, typer.Option(metavar="PLAN", help="Rank this plan in the same table.")] = None,
    write_space: Annotated[Path | None, typer.Option(help="Write the space that is searched, commented.")] = None,
    effort: Annotated[str, typer.Option(help="fast, normal or deep.")] = "normal",
    top: Annotated[int, typer.Option(**FROM_1, help="Plans to rank.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Keep the answer as a plan document (JSON).")] = None,
    engine: Annotated[str, typer.Option(help="auto, exact or optuna.")] = "auto",
    trials: Annotated[int | None, typer.Option(**FROM_1, help="Trials of the optuna engine.")] = None,
    workers: Annotated[int, typer.Option(**FROM_1, help="Processes of the optuna engine; the answer is the same.")] = 1,
    storage: Annotated[str | None, typer.Option(help="Keep a study: a journal file or a database URL.")] = None,
    seed: Annotated[int, typer.Option(**FROM_0, help="Seed of a study.")] = 0,
    timeout: Annotated[
        float | None, typer.Option(**FROM_0, help="Seconds after which to stop; states the gap.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Rank the parallel plans of a space, or of a model on a cluster."""
    from autodeploy.cli.ask import Asked
    from autodeploy.cli.search import Options, run_search

    asked = Asked(
        space_file=space, model=model, cluster=cluster, target=target, devices=devices, seq_len=seq_len, gbs=gbs,
        fix=fix, only=tuple(only or ()), ban=tuple(ban or ()), effort=effort,
    )  # fmt: skip
    options = Options(
        baseline=baseline, write_space=write_space, top=top, out=out, engine=engine, trials=trials, workers=workers,
        storage=storage, seed=seed, timeout_s=timeout, as_json=json,
    )  # fmt: skip
    return run_search(asked, options)


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
def memory(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="FILE, FILE#RANK, or a short form with --space.")],
    space: Annotated[Path | None, typer.Option(help="Space file of a short form.")] = None,
    gbs: GbsOption = None,
    json: JsonOption = False,
) -> int:
    """Show what a plan holds in memory: per stage, term and moment; headroom, and what breaks first."""
    from autodeploy.cli.memory import run_memory

    return run_memory(plan, space, gbs=gbs, as_json=json)


@app.command()
@guarded
def export(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="FILE, FILE#RANK, or a short form with --space.")],
    target: Annotated[str, typer.Option(help="Framework and version to launch with.")],
    space: Annotated[Path | None, typer.Option(help="Space file of a short form.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write there instead of to stdout.")] = None,
    allow_loss: Annotated[bool, typer.Option("--allow-loss", help="Write although the target cannot say all.")] = False,
) -> int:
    """Write the flags or the YAML that launch a plan, and what the target cannot express."""
    from autodeploy.cli.export import run_export

    return run_export(plan, target=target, space_file=space, out=out, allow_loss=allow_loss)


@app.command()
@guarded
def trace(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="FILE, FILE#RANK, or a short form with --space.")],
    space: Annotated[Path | None, typer.Option(help="Space file of a short form.")] = None,
    gbs: GbsOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the step as JSON for ui.perfetto.dev.")] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw the pipeline in the terminal.")] = False,
) -> int:
    """Show one step of a plan op by op: a trace file with memory over time, or a drawing."""
    from autodeploy.cli.trace import run_trace

    return run_trace(plan, space_file=space, gbs=gbs, out=out, draw=ascii)


@app.command()
@guarded
def layout(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="FILE, FILE#RANK, or a short form with --space.")],
    space: Annotated[Path | None, typer.Option(help="Space file of a short form.")] = None,
    gbs: GbsOption = None,
    json: JsonOption = False,
) -> int:
    """Solve in which pipeline slot each layer of a plan goes, beside the layouts by rule."""
    from autodeploy.cli.layout import run_layout

    return run_layout(plan, space_file=space, gbs=gbs, as_json=json)


@app.command()
@guarded
def schedules(
    pp: Annotated[int, typer.Option(**FROM_1, help="Pipeline stages.")],
    microbatches: Annotated[int, typer.Option(**FROM_1, help="Microbatches a step.")],
    forward: Annotated[str, typer.Option(help="Forward of a whole stage: 0.01, 10ms, or one for each stage: 8ms,9ms.")],
    backward: Annotated[str, typer.Option(help="Backward of a whole stage, likewise.")],
    vpp: Annotated[list[str] | None, typer.Option(help="Chunks a stage, interleaved: 2 or 2,4 (repeatable).")] = None,
    send: Annotated[str, typer.Option(help="One message between neighbouring stages.")] = "0",
    merged: Annotated[str | None, typer.Option(help="Forward merged with a backward; without it their sum.")] = None,
    weights: Annotated[str | None, typer.Option(help="Of the backward, its weight gradients, likewise.")] = None,
    json: JsonOption = False,
) -> int:
    """Compare pipeline schedules by bubble, live activations and messages, from the times of a stage."""
    from autodeploy.cli.schedules import run_schedules

    return run_schedules(
        pp, microbatches, vpp or (), forward=forward, backward=backward, send=send, merged=merged, weights=weights,
        as_json=json,
    )  # fmt: skip


@app.command()
@guarded
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP", help="Sweep file with a [matrix] table.")],
    out: Annotated[Path, typer.Option(help="JSON Lines, one a cell; resumed if it is there.")],
    workers: Annotated[int | None, typer.Option(**FROM_1, help="Processes; the lines are the same.")] = None,
) -> int:
    """Search every cell of a matrix of models, clusters, sizes and batches."""
    from autodeploy.cli.sweep import run

    return run(file, out, workers)


@app.command()
@guarded
def gate(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="JSON Lines of a sweep.")],
    baseline: Annotated[Path | None, typer.Option(help="JSON Lines of an earlier run.")] = None,
    max_regress: Annotated[str, typer.Option(help="How much slower a cell may become.")] = "2%",
    sweep: Annotated[Path | None, typer.Option(help="Sweep file whose thresholds must hold.")] = None,
) -> int:
    """Hold the results of a sweep against an earlier run and against thresholds."""
    from autodeploy.cli.sweep import run_gate

    return run_gate(results, baseline, max_regress, sweep)


@app.command()
@guarded
def validate(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUNS.csv]", help="Tables of measured runs (docs/validate.md).")
    ] = None,
    json: JsonOption = False,
    html: Annotated[bool, typer.Option("--html", help="Predicted against measured as a page.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The figures as Markdown.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write there instead of to stdout.")] = None,
) -> int:
    """Predict measured runs and say how far off we are, by hardware, kind and source."""
    from autodeploy.cli.validate import form_of, run_validate

    return run_validate(runs or (), form_of(json=json, html=html, markdown=markdown), out)


@app.command()
@guarded
def calibrate(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUNS.csv]", help="Tables of your runs (docs/validate.md).")
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of the catalog or TOML file to start from.")] = "",
    out: Annotated[Path | None, typer.Option(help="Cluster file to write.")] = None,
    target: Annotated[str | None, typer.Option(help="Target of the runs; without, what their rows name.")] = None,
    pace: Annotated[bool, typer.Option("--pace", help="One factor on everything: what one run may set.")] = False,
    collective_log: Annotated[list[Path] | None, typer.Option(help="Log of nccl-tests or HCCL test.")] = None,
    matmul_log: Annotated[Path | None, typer.Option(help="CSV with m, n, k and time_us or tflops.")] = None,
    collective: Annotated[str, typer.Option(help="Collective of the logs, where they do not say.")] = "",
    ranks: Annotated[int, typer.Option(help="Ranks of the logs, where they do not say.")] = 0,
    hosts: Annotated[int, typer.Option(help="Hosts of the logs, where they do not say.")] = 0,
    catalog: Annotated[bool, typer.Option("--catalog", help="Fit the catalog's factors on published runs.")] = False,
) -> int:
    """Fit a cluster file on your own runs and logs, with every residual and what the runs cannot tell."""
    from autodeploy.cli.calibrate import Asked, run_calibrate, run_recalibrate

    asked = Asked(
        runs=runs or (), collectives=collective_log or (), products=matmul_log, target=target, pace=pace,
        collective=collective, ranks=ranks, hosts=hosts,
    )  # fmt: skip
    return run_recalibrate(asked, cluster, out) if catalog else run_calibrate(cluster, asked, out)


@app.command()
@guarded
def claims(
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as Markdown.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write there instead of to stdout.")] = None,
) -> int:
    """Show what was published about Pangu Ultra MoE and its stack beside what this model says, with ranges."""
    from autodeploy.cli.claims import run_claims
    from autodeploy.cli.validate import form_of

    return run_claims(form_of(json=json, markdown=markdown), out)


@app.command()
@guarded
def dispatch(
    model: Annotated[str, typer.Option(help="Model of the catalog, model file, or a config.json.")] = "deepseek-v3",
    cluster: Annotated[
        list[str] | None, typer.Option(help="Cluster of the catalog, or a cluster file (repeatable; default all).")
    ] = None,
    tokens: Annotated[int, typer.Option(**FROM_1, help="Tokens of a rank in a microbatch.")] = 4096,
    imbalance: Annotated[float, typer.Option(help="Busiest expert rank over the mean, from 1.")] = 1.0,
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write there instead of to stdout.")] = None,
) -> int:
    """Show which way of bringing tokens to their experts is quickest, by the size of the expert group, and why."""
    from autodeploy.cli.dispatch import run_dispatch
    from autodeploy.cli.validate import form_of

    form = form_of(json=json, markdown=markdown)
    return run_dispatch(model, cluster or [], tokens, imbalance, form, out)


@app.command()
@guarded
def models(
    name: Annotated[str | None, typer.Argument(help="A model of the catalog, a model file, or a config.json.")] = None,
    config: Annotated[str | None, typer.Option("--import", help="The same as the argument.")] = None,
    expect_params: Annotated[str | None, typer.Option(help="Fail unless the total is this: 235B.")] = None,
    json: JsonOption = False,
) -> int:
    """List the models, or show one with its parameter counts; imports a Hugging Face config.json."""
    from autodeploy.cli.entries import show_models

    return show_models(name or config, expect_params, as_json=json)


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
    kind: Annotated[str, typer.Argument(help="model, job, cluster, target, plan, space or sweep.")],
) -> int:
    """Print the JSON Schema of a kind of file."""
    from autodeploy.cli.entries import show_schema

    return show_schema(kind)


def main() -> None:
    """Entry point of the `autodeploy` command."""
    app()
