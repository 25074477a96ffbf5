"""Builds small ALBERT, ELECTRA and ModernBERT with the objective of each, for `pretrain_step.py`.

    albert       4 layers of width 512 with shared parameters, E = 128: masked LM, sentence order
    electra      ELECTRA-small, 12 layers of width 256, and its generator of width 64: replaced
                 tokens, sampled from the generator by both sides
    modernbert   the shape of Ettin-17m, 7 layers of width 256: masked LM

The PyTorch side is Hugging Face's classes with the losses that they compute. "hf-gathered" computes
the masked-LM head at `masked_lm_positions` only, by hand, unused ones included as in bert_jax.
"""

from collections.abc import Callable
from typing import Any

FAMILIES = ("albert", "electra", "modernbert")
MASK_TOKEN_ID = 4


def objective_config(family: str, compute: Any) -> Any:
    """Returns the objective of a family for bert_jax."""
    from bert_jax.config.objectives import Pretraining, ReplacedTokens
    from bert_jax.models.albert.config import AlbertConfig
    from bert_jax.models.electra.config import ElectraConfig, generator_config
    from bert_jax.models.modernbert.config import ModernBertConfig

    common: dict[str, Any] = {"mask_token_id": MASK_TOKEN_ID, "compute": compute}
    match family:
        case "albert":
            model = AlbertConfig(
                hidden_size=512,
                num_hidden_layers=4,
                num_attention_heads=8,
                intermediate_size=2048,
            )
            return Pretraining(model=model, nsp_weight=0.0, sop_weight=1.0, **common)
        case "electra":
            electra = ElectraConfig.from_size("small")
            generator = generator_config(electra, 0.25)
            return ReplacedTokens(model=electra, generator=generator, **common)
        case _:
            modernbert = ModernBertConfig.from_size("ettin-17m")
            return Pretraining(model=modernbert, nsp_weight=0.0, **common)


def torch_losses(objective: Any, batch: Any, labels: Any, gathered: bool) -> tuple[Any, Any]:
    """Returns a module with all parameters, and a function that computes the loss in PyTorch.

    Args:
      objective: the config of the same objective in bert_jax.
      batch: the fields of a pretraining batch as tensors.
      labels: [B, L], the ids at masked positions, and -100 elsewhere.
      gathered: whether the masked-LM head is computed at the masked positions only.
    """
    build = {"ALBERT": _albert, "ELECTRA": _electra, "ModernBERT": _modernbert}
    return build[objective.model.family](objective, batch, labels, gathered)


def _sizes(model: Any, **fields: Any) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "attn_implementation": "sdpa",
        **fields,
    }


def _take(hidden: Any, batch: Any) -> Any:
    """Returns the hidden states [B, P, D] at the positions of the predictions."""
    positions = batch["masked_lm_positions"][..., None].expand(-1, -1, hidden.shape[-1])
    return hidden.gather(1, positions)


def _masked_lm_loss(scores: Any, batch: Any) -> Any:
    """Returns the mean loss of the predictions that are used; `scores` are [B, P, V]."""
    from torch.nn.functional import cross_entropy

    ids, weights = batch["masked_lm_ids"].flatten(), batch["masked_lm_weights"].flatten()
    losses = cross_entropy(scores.flatten(0, 1).float(), ids, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _albert(
    objective: Any, batch: Any, labels: Any, gathered: bool
) -> tuple[Any, Callable[[], Any]]:
    import transformers
    from torch.nn.functional import cross_entropy

    config = transformers.AlbertConfig(
        **_sizes(objective.model, embedding_size=objective.model.embedding_size),
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.AlbertForPreTraining(config)
    inputs = {n: batch[n] for n in ("input_ids", "token_type_ids", "attention_mask")}
    order = batch["sentence_order_labels"]

    def loss() -> Any:
        if not gathered:
            return model(**inputs, labels=labels, sentence_order_label=order).loss
        out = model.albert(**inputs)
        scores = model.predictions(_take(out.last_hidden_state, batch))
        return _masked_lm_loss(scores, batch) + cross_entropy(
            model.sop_classifier(out.pooler_output).float(), order
        )

    return model, loss


def _electra(
    objective: Any, batch: Any, labels: Any, gathered: bool
) -> tuple[Any, Callable[[], Any]]:
    import torch
    import transformers

    def config(model: Any) -> Any:
        return transformers.ElectraConfig(**_sizes(model, embedding_size=model.embedding_size))

    discriminator = transformers.ElectraForPreTraining(config(objective.model))
    generator = transformers.ElectraForMaskedLM(config(objective.generator))
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    inputs = {n: batch[n] for n in ("token_type_ids", "attention_mask")}
    ids, is_masked = batch["input_ids"], labels >= 0
    masked_ids = labels[is_masked]

    def loss() -> Any:
        if gathered:
            hidden = generator.electra(ids, **inputs).last_hidden_state
            scores = generator.generator_lm_head(
                generator.generator_predictions(_take(hidden, batch))
            )
            mlm_loss = _masked_lm_loss(scores, batch)
            scores = scores[batch["masked_lm_weights"] > 0]
        else:
            out = generator(ids, **inputs, labels=labels)
            mlm_loss, scores = out.loss, out.logits[is_masked]
        noise = -torch.log(-torch.log(torch.rand_like(scores, dtype=torch.float32)))
        sampled = (scores.detach().float() + noise).argmax(-1)
        replaced = ids.masked_scatter(is_masked, sampled)
        is_replaced = torch.zeros_like(ids).masked_scatter(
            is_masked, (sampled != masked_ids).long()
        )
        return mlm_loss + 50.0 * discriminator(replaced, **inputs, labels=is_replaced).loss

    return torch.nn.ModuleList([discriminator, generator]), loss


def _modernbert(
    objective: Any, batch: Any, labels: Any, gathered: bool
) -> tuple[Any, Callable[[], Any]]:
    import transformers

    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": objective.model.global_rope_theta},
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": objective.model.local_rope_theta,
        },
    }
    config = transformers.ModernBertConfig(**_sizes(objective.model, rope_parameters=rope))
    model = transformers.ModernBertForMaskedLM(config)
    inputs = {n: batch[n] for n in ("input_ids", "attention_mask")}

    def loss() -> Any:
        if not gathered:
            return model(**inputs, labels=labels).loss
        hidden = _take(model.model(**inputs).last_hidden_state, batch)
        return _masked_lm_loss(model.decoder(model.head(hidden)), batch)

    return model, loss
