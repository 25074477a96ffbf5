"""Runs `bert-jax curate`: drops bad and repeated documents of raw text, with a ledger of each."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.apps.curate.cli.curation_recipe import CurationRecipe
from bert_jax.config.flags import flag, switch
from bert_jax.errors import ConfigError
from bert_jax.io.json_io import read_json

if TYPE_CHECKING:
    from bert_jax.apps.curate.plan import CurationConfig

HELP = "filter and deduplicate raw text, and record what happened to each document"

EPILOG = """examples:
  bert-jax curate web --output curated --arg files='crawl/*.jsonl.gz'
  bert-jax curate web --dry-run --tokenizer vocabulary --arg files='crawl/*.jsonl.gz'
  bert-jax curate documents --output curated --document-unit blank-line \\
      --arg files='books/*.txt'
  bert-jax curate web --output gs://my-bucket/curated --arg files='gs://my-bucket/crawl/*.jsonl.gz'
  bert-jax prepare --files 'curated/documents-*.jsonl.gz' --tokenizer vocabulary --output prepared

The same command resumes after a stop. The documents written are identical with any number of
workers. The ledger-*.parquet files have one row for each document of the input: whether it was
kept, or by which rule, with which value, or in favor of which other document it was dropped.
curation.html shows them: counts, limits on histograms, examples of every reason.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(CurationRecipe):
    """Names the recipe and the output folder."""

    output: str | None = flag(
        "DIR",
        "output folder, which may be remote (gs://bucket/corpus); required without --dry-run",
    )
    workers: int | None = flag("N", "number of processes (default: one per CPU core)")
    dry_run: bool = switch(
        "forecast of documents, time and disk space from a sample; writes nothing"
    )
    tokenizer: str | None = flag("PATH", "tokenizer of --dry-run, to forecast tokens as well")

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: expected at least 1")
        if self.output is None and not self.dry_run:
            raise ConfigError("--output is missing, expected a folder; or give --dry-run")
        if self.tokenizer is not None and not self.dry_run:
            raise ConfigError("--tokenizer is for --dry-run: a curated corpus has no tokens")


def run(args: Arguments) -> None:
    """Curates the corpus and prints what was kept and dropped."""
    from bert_jax.apps.curate.curate import curate
    from bert_jax.apps.curate.remote_output import local_output
    from bert_jax.apps.curate.report import REPORT_FILE, write_curation_report

    config = args.curation_config()
    if args.dry_run:
        print(_forecast(config, args))
        return
    assert args.output is not None
    output = args.output.rstrip("/") or "/"
    with local_output(output) as folder:
        manifest = curate(config, folder, num_workers=args.workers)
        report = folder / REPORT_FILE
        if not report.is_file():
            write_curation_report(config, folder)
        summary = _summary(manifest, folder, output)
    print(f"{summary}\nreport: {output}/{REPORT_FILE}")


def _forecast(config: "CurationConfig", args: Arguments) -> str:
    from bert_jax.apps.curate.sample import describe_forecast, forecast
    from bert_jax.text.load_tokenizer import load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer) if args.tokenizer else None
    return describe_forecast(forecast(config, tokenizer), args.workers or os.cpu_count() or 1)


def _summary(manifest: dict[str, Any], folder: Path, output: str) -> str:
    from bert_jax.data.corpus.contamination.found_items import SUMMARY_FILE

    counts = manifest["counts"]
    retained, total = counts["retained_documents"], counts["documents"]
    fraction = counts["retained_characters"] / max(counts["characters"], 1)
    lines = [
        f"{output}: kept {retained:,} of {total:,} documents, {fraction:.1%} of the characters",
    ]
    for source, reasons in counts["dropped"].items():
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            lines.append(f"  {source}: {count:,} dropped, {reason}")
    for reason, count in manifest["removed_lines"].items():
        lines.append(f"  {count:,} lines removed, {reason}")
    if (folder / SUMMARY_FILE).is_file():
        for name, found in read_json(folder / SUMMARY_FILE)["sets"].items():
            lines.append(
                f"  {name}: {found['items_with_input_found']:,} of {found['items']:,} items found "
                f"as input (in {found['documents_with_input']:,} documents), "
                f"{found['items_with_context_found']:,} as context (in "
                f"{found['documents_with_context']:,}); {found['items_not_searchable']:,} are too "
                "short or too common to be searched"
            )
    lines.append(
        f"next: bert-jax prepare --files '{output}/documents-*.jsonl.gz' --tokenizer VOCABULARY "
        "--output prepared"
    )
    return "\n".join(lines)
