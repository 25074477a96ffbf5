"""Runs `bert-jax attribute`: which tokens raise or lower the output of a fine-tuned model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bert_jax.cli.arguments import MODEL_WITH_HEAD, ModelArguments, TextArguments, text_groups
from bert_jax.config.flags import flag, switch

HELP = "attribute a prediction to the tokens of its input, by integrated gradients or occlusion"

EPILOG = f"""examples:
  bert-jax attribute runs/reviews "A fine film."
  bert-jax attribute runs/rte --pairs "It rains." "The street is wet." --target entailment
  bert-jax attribute runs/reviews --file reviews.txt --method occlusion --output attributions

{MODEL_WITH_HEAD}
The output that is explained is the logit of a label, or the only output of a regression or ranking.
Integrated gradients lead from a baseline, in which all tokens but the special ones are replaced, to
the input; they sum to the difference of both outputs. The rest is the completeness error, which
falls with --steps. Occlusion replaces one token at a time.

Prints the tokens of each text with their attributions. --output FOLDER also gets attributions.json
and attributions.html, a page that opens offline.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments, ModelArguments):
    """Names the model, the texts and the method."""

    pairs: bool = switch("pairs of texts: two TEXTs, or two texts separated by a tab in a line")
    task: str | None = flag("NAME", "task whose head is used, for a run with several")
    method: Literal["integrated_gradients", "occlusion"] = flag(
        "", "method (default: integrated_gradients)", "integrated_gradients"
    )
    baseline: Literal["pad", "mask", "zero"] = flag(
        "",
        "what a token is replaced by: the embedding of [PAD] or of [MASK], or zeros (default: pad)",
        "pad",
    )
    target: str | None = flag(
        "LABEL", "label whose logit is explained (default: the one with the largest logit)"
    )
    steps: int = flag("N", "points at which gradients are computed", 50)
    output: str | None = flag("FOLDER", "folder of the JSON file and the page")


def run(args: Arguments) -> None:
    """Prints the attributions of each text; empty lines are left out."""
    from bert_jax.apps.attributions.attributor import Attributor, to_json
    from bert_jax.apps.attributions.page import attributions_page, prediction_text, summary
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.predict.files import group_arguments, parse_line
    from bert_jax.pretrained.load import load_model, require_encoder, require_single_task
    from bert_jax.report.output_folder import write_results

    check_writable(args.output, is_folder=True)
    model = require_encoder(load_model(args.model, args.task), "attribute its predictions")
    require_single_task(model)
    attribute = Attributor(model, method=args.method, baseline=args.baseline, steps=args.steps)
    results: list[dict[str, Any]] = []
    inputs = (
        group_arguments(args.texts, attribute.kind, args.pairs)
        if args.texts
        else (
            parse_line(line, attribute.kind, args.pairs)
            for group in text_groups(args)
            for line in group
            if line.strip()
        )
    )
    for model_input in inputs:
        result = to_json(attribute(model_input, args.target), args.method)
        results.append(result)
        width = max(len(token["token"]) for token in result["tokens"])
        for token in result["tokens"]:
            print(f"{token['token'].ljust(width)}  {token['attribution']:+.4f}")
        print(f"{prediction_text(result['prediction'])}; {summary(result)}\n", flush=True)
    if args.output is not None:
        description = (
            f"{args.method.replace('_', ' ').capitalize()} with the baseline {args.baseline!r}."
        )
        page = attributions_page(f"Attributions of {args.model}", description, results)
        settings = {"model": args.model, "method": args.method, "baseline": args.baseline}
        write_results(Path(args.output), "attributions", {**settings, "results": results}, page)
