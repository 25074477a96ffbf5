"""Makes the shipped pretraining recipes small: networks of width 16 on a generated corpus.

Every objective of pretraining is in one of `RECIPES`. Dropout, optimizer, schedule, masking and
input format are those of the recipe.
"""

import dataclasses
from pathlib import Path
from typing import Any

from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import ReplacedTokens
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.models.layers.config import LearnedPositions, PaddingOffsetPositions
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.seq2seq.config import Seq2SeqTransformerConfig
from bert_jax.models.t5.config import T5Config
from bert_jax.pretrained.load import build_model
from bert_jax.text.learn import train_tokenizer_from_files

LENGTH = 32
BERT_CORPUS, ROBERTA_CORPUS, TEACHER = "prepared", "prepared-bpe", "teacher"
T5_CORPUS, ESM_CORPUS = "prepared-t5", "prepared-esm"

# The recipe of each model, its arguments, and the corpus with the special tokens of the model.
RECIPES: dict[str, tuple[str, list[str], str]] = {
    "albert": ("albert", [], BERT_CORPUS),
    "spanbert": ("spanbert", [], BERT_CORPUS),
    "electra": ("electra", ["warmup_steps=1"], BERT_CORPUS),
    "deberta": ("deberta", ["warmup_steps=1"], BERT_CORPUS),
    "mpnet": ("mpnet", [], ROBERTA_CORPUS),
    "modernbert": ("modernbert", ["size=ettin-17m"], BERT_CORPUS),
    "token dropping": ("modernbert", ["size=ettin-17m"], BERT_CORPUS),
    "masked diffusion": ("masked_diffusion", ["size=ettin-17m"], BERT_CORPUS),
    "esm": ("esm", [], ESM_CORPUS),
    "nomic_bert": ("masked_lm", ["model=nomic_bert"], BERT_CORPUS),
    "gte": ("masked_lm", ["model=gte"], BERT_CORPUS),
    "gpt-bert": ("gpt_bert", ["size=ettin-17m", "num_phases=1"], BERT_CORPUS),
    "distilbert": ("distilbert", ["teacher_layers=[0]"], BERT_CORPUS),
    "longformer": ("long_sequences", ["model=longformer"], ROBERTA_CORPUS),
    "bigbird": ("long_sequences", ["model=bigbird"], BERT_CORPUS),
    "t5": ("t5", ["size=small", "warmup_steps=1"], T5_CORPUS),
    "bart": ("bart", [], ROBERTA_CORPUS),
}


def prepare_recipes(folder: Path) -> Path:
    """Writes corpora with the special tokens of BERT, RoBERTa, T5 and ESM-2, and a teacher."""
    prepared = prepare_corpus(folder)
    text = str(folder / "text/*.txt")
    source = TextFiles(text)
    for corpus, training in (
        (ROBERTA_CORPUS, TokenizerTrainingConfig(kind="bpe", vocab_size=280)),
        (T5_CORPUS, TokenizerTrainingConfig(kind="unigram", vocab_size=64, sentinels=8)),
        # A small letter is unknown, so a sentence has few tokens.
        (ESM_CORPUS, TokenizerTrainingConfig(kind="amino_acids")),
    ):
        tokenizer_folder, output = str(folder / training.kind), str(folder / corpus)
        train_tokenizer_from_files([text], tokenizer_folder, training)
        config = PrepareConfig(source=source, tokenizer=tokenizer_folder, output=output)
        prepare(config, num_workers=1)
    tokenizer = PreparedCorpus(prepared).tokenizer()
    config = small_config(
        vocab_size=tokenizer.vocab_size,
        positions=LearnedPositions(max_position_embeddings=LENGTH),
    )
    imported = ImportedModel(random_parameters(config), config, tokenizer)
    export(build_model(imported, "teacher"), folder / TEACHER)
    return folder


def small_experiment(name: str, folder: Path, *, steps: int = 4) -> Experiment:
    """Returns the run of a model in `RECIPES` for a few updates, on the data of a folder."""
    recipe, arguments, corpus = RECIPES[name]
    file = str(Path(__file__).parents[2] / f"configs/pretrain/{recipe}.py")
    given = [f"corpus={folder / corpus}", f"steps={steps}", f"seq_length={LENGTH}", "batch_size=8"]
    given += ["learning_rate=1e-3", "bfloat16=false", *arguments]
    if name == "distilbert":
        given.append(f"teacher={folder / TEACHER}")
    experiment = call_recipe(load_recipe(file), given, file)
    model = small_model(experiment.objective.model)
    changes: dict[str, Any] = {"model": model}
    if isinstance(experiment.objective, ReplacedTokens):
        is_electra = isinstance(model, ElectraConfig)
        changes["generator"] = generator_config(model, 0.5) if is_electra else model
    objective: Any = dataclasses.replace(experiment.objective, **changes)
    return override(
        dataclasses.replace(experiment, objective=objective),
        [
            *("train.checkpoints.save_every=2", "train.logging.log_every=1"),
            *(["objective.token_dropping={}"] if name == "token dropping" else []),
        ],
    )


def small_model(config: Any) -> Any:
    """Returns a config of the same family with one or two layers of width 16."""
    if isinstance(config, Seq2SeqTransformerConfig):
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
        if isinstance(config, T5Config):
            sizes |= {"d_kv": 4, "relative_attention_num_buckets": 8}
        if isinstance(config, BartConfig):
            sizes["max_position_embeddings"] = LENGTH
        return dataclasses.replace(config, **sizes)
    if isinstance(config, DistilBertConfig):
        return config  # as small as its teacher
    fields: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    if isinstance(config.positions, LearnedPositions):
        fields["positions"] = LearnedPositions(max_position_embeddings=LENGTH)
    if isinstance(config.positions, PaddingOffsetPositions):
        fields["positions"] = PaddingOffsetPositions(max_position_embeddings=LENGTH + 2)
    match config:
        case AlbertConfig():
            fields |= {"embedding_size": 8, "num_hidden_layers": 2}
        case ElectraConfig():
            fields |= {"embedding_size": 8}
        case ModernBertConfig():  # a global and a local layer
            fields |= {"num_hidden_layers": 2, "layer_types": (), "local_attention": 8}
        case LongformerConfig():
            fields |= {"attention_window": (8,)}
        case BigBirdConfig():  # sparse for more than 28 tokens
            fields["attention"] = BlockSparseWhenLong(block_size=4, num_random_blocks=1)
        case _:
            pass
    return dataclasses.replace(config, **fields)
