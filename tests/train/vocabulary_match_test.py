"""Tests that a run is refused if its model, corpora and labeled data have different tokenizers.

Sources: bert_jax/text/compatibility.py, bert_jax/train/initialize.py.
"""

import dataclasses
import shutil
from pathlib import Path

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.studies import forgetting
from bert_jax.apps.studies.ngram_comparison import ngram_baseline_losses
from bert_jax.apps.testing.models import random_parameters, small_config, small_model, write_run
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns
from bert_jax.config.recipes import load_recipe
from bert_jax.config.train import HeldOutEval, make_mesh_config
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.parallel import sharding
from bert_jax.pretrained.initial import tokenizer_folder
from bert_jax.pretrained.load import LoadedModel, build_model
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.presets import fine_tuning_experiment, multi_task_experiment
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from bert_jax.train.tuning import fisher
from bert_jax.train.workloads import make_workload

RECIPES = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Holds corpora, and models of their vocabulary.

    train/prepared and heldout/prepared have one vocabulary; other/prepared has another order of the
    same tokens; model/ has the vocabulary of train/, tiny/ one of 18 tokens.
    """
    folder = tmp_path_factory.mktemp("meet")
    prepare_corpus(folder / "train")
    prepare_corpus(folder / "heldout", num_documents=12, seed=1)
    shutil.copytree(folder / "heldout" / "text", folder / "other" / "text")
    lines = (folder / "train" / "vocabulary" / "vocab.txt").read_text().splitlines()
    (folder / "other" / "vocab.txt").write_text("\n".join([*lines[:5], *lines[:4:-1]]) + "\n")
    prepare_again(folder, folder / "other" / "prepared", folder / "other" / "vocab.txt")
    export(corpus_model(folder), folder / "model")
    export(small_model(folder / "v"), folder / "tiny")
    return folder


def prepare_again(folder: Path, output: Path, vocabulary: Path) -> None:
    text = TextFiles(str(folder / "heldout" / "text" / "*.txt"))
    prepare(
        PrepareConfig(source=text, tokenizer=str(vocabulary), output=str(output)), num_workers=1
    )


def corpus_model(folder: Path, only: tuple[str, ...] = ()) -> LoadedModel:
    """Returns a model with the vocabulary of the corpora; `only` selects parts of it."""
    vocabulary = PreparedCorpus(folder / "train" / "prepared").tokenizer()
    config = small_config(vocab_size=vocabulary.vocab_size)
    flat = random_parameters(config)
    chosen = {path: leaf for path, leaf in flat.items() if not only or path.split("/")[0] in only}
    return build_model(ImportedModel(chosen, config, vocabulary), "model")


def adapt(prepared: Path, model: Path, heldout: Path | None = None) -> Experiment:
    return load_recipe(str(RECIPES / "pretrain" / "adapt.py"))(
        corpus=str(prepared),
        model=str(model),
        heldout=heldout and str(heldout),
        steps=2,
        batch_size=8,
        seq_length=16,
    )


def refused(experiment: Experiment, run_folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(experiment, run_folder)
    assert not (run_folder / "vocabulary").exists() and not (run_folder / "config.json").exists()


def test_corpus_with_another_vocabulary_is_rejected(folder, tmp_path):
    model, corpus = folder / "model", folder / "other" / "prepared"
    message = (
        rf"{model} and {corpus} have different vocabularies: {model} has 78 tokens, fingerprint "
        rf"\w{{12}}; {corpus} has 78 tokens, .*`bert-jax prepare --tokenizer {model}`"
    )
    refused(adapt(corpus, model), tmp_path / "run", message)


def test_each_kind_of_model_folder_is_compared(folder, tmp_path):
    corpus = folder / "train" / "prepared"
    trained = write_run(tmp_path / "trained", small_model(tmp_path / "v"))
    for model, vocabulary in (
        (folder / "tiny", folder / "tiny"),
        (trained, trained / "vocabulary"),
        (trained / "checkpoints" / "10", trained / "vocabulary"),
    ):
        message = rf"{model} has 18 tokens.* 78 tokens.*--tokenizer {vocabulary}`"
        refused(adapt(corpus, model), tmp_path / "run", message)


def test_tf1_checkpoint_is_compared(shared, folder, tmp_path):
    checkpoint = shared / "checkpoints" / "tf_format_tiny"
    for path in (checkpoint, checkpoint / "bert_model.ckpt"):
        assert tokenizer_folder(str(path)) == checkpoint
        refused(
            adapt(folder / "train" / "prepared", path),
            tmp_path / "run",
            rf"different vocabularies: .*--tokenizer {checkpoint}`",
        )


def test_model_without_vocabulary_is_compared_by_size(folder, tmp_path, caplog):
    bare = dataclasses.replace(small_model(tmp_path / "v"), tokenizer=None)
    export(bare, tmp_path / "bare")
    refused(
        adapt(folder / "train" / "prepared", tmp_path / "bare"), tmp_path / "run", "78 tokens.* 18"
    )
    assert "bare has no vocabulary files to compare with those of" in caplog.text


def test_corpus_prepared_again_during_a_run_is_rejected(folder, tmp_path):
    moving = tmp_path / "prepared"
    shutil.copytree(folder / "train" / "prepared", moving)
    config = adapt(moving, folder / "model")
    make_workload(config).prepare_run_folder(tmp_path)
    make_workload(dataclasses.replace(config, init_from="a model that is gone")).prepare_run_folder(
        tmp_path
    )
    shutil.rmtree(moving)
    shutil.copytree(folder / "other" / "prepared", moving)
    with pytest.raises(UserError, match=rf"--tokenizer {tmp_path / 'vocabulary'}`"):
        make_workload(config).prepare_run_folder(tmp_path)


def test_held_out_corpus_with_another_vocabulary_is_rejected(folder, tmp_path):
    train, other = folder / "train" / "prepared", folder / "other" / "prepared"
    message = rf"{train} and {other} have different.*held-out text.*--tokenizer {train}/vocabulary`"
    config = adapt(train, folder / "model", heldout=other)
    refused(config, tmp_path / "run", message)
    with pytest.raises(UserError, match=message):
        ngram_baseline_losses(config)
    with pytest.raises(UserError, match=r"no held-out corpus.*--arg heldout=FOLDER"):
        ngram_baseline_losses(adapt(train, folder / "model"))


def test_training_corpus_as_held_out_corpus_is_rejected(folder, tmp_path):
    train = folder / "train" / "prepared"
    shutil.copytree(train, tmp_path / "copy")
    (tmp_path / "link").symlink_to(train)
    for heldout in (train, tmp_path / "copy", tmp_path / "link"):
        message = rf"{heldout} has the same documents as the training corpus {train} \(40 documents"
        refused(adapt(train, folder / "model", heldout=heldout), tmp_path / "run", message)


def test_held_out_corpus_of_other_documents_is_accepted(folder, tmp_path):
    train, heldout = (folder / name / "prepared" for name in ("train", "heldout"))
    config = adapt(train, folder / "model", heldout=heldout)
    assert isinstance(config.train.evaluation, HeldOutEval)
    make_workload(config).prepare_run_folder(tmp_path)
    missing = adapt(train, folder / "model", heldout=tmp_path / "nothing")
    with pytest.raises(UserError, match=r"nothing: no such folder; expected a prepared corpus"):
        make_workload(missing).prepare_run_folder(tmp_path)


@pytest.mark.parametrize("name", ["pretrain/bert", "pretrain/small_corpus", "pretrain/adapt"])
def test_recipe_error_names_the_missing_corpus(name, folder):
    more = {"model": str(folder / "model")} if name.endswith("adapt") else {}
    with pytest.raises(UserError, match=r"trainx: no such folder.*bert-jax prepare"):
        load_recipe(str(RECIPES / f"{name}.py"))(corpus=str(folder / "trainx"), **more)


def test_show_config_compares_model_and_held_out_corpus(folder, capsys):
    command = ["show-config", "pretrain/bert", "--devices", str(jax.device_count())]
    command += ["--arg", "size=tiny", f"corpus={folder / 'train' / 'prepared'}"]
    assert main(command) == 0
    assert "78 tokens" not in capsys.readouterr().err
    assert main([*command, "--set", "objective.model.vocab_size=40"]) == 1
    assert "has 78 tokens, but the word-embedding table of the model has 40" in (
        capsys.readouterr().err
    )
    assert main([*command, "--arg", f"heldout={folder / 'absent'}"]) == 1
    assert "absent: no such folder; expected a prepared corpus" in capsys.readouterr().err


def test_labeled_data_with_another_vocabulary_is_rejected(folder, tmp_path):
    export(
        small_model(tmp_path / "v", positions=LearnedPositions(max_position_embeddings=40)),
        tmp_path / "m",
    )
    words = (tmp_path / "v" / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*words[:5], *words[:4:-1]]) + "\n")
    (tmp_path / "train.csv").write_text("text,label\nthe sea,yes\na net,no\n")
    task = Columns(train=str(tmp_path / "train.csv"), text="text", label="label")
    remedy = rf"set data\.tokenizer to {tmp_path / 'm'}$"
    for config in (
        fine_tuning_experiment(task, str(tmp_path / "m")),
        multi_task_experiment({"one": task, "two": task}, str(tmp_path / "m")),
    ):
        make_workload(config).prepare_run_folder(tmp_path / "run of the model's own vocabulary")
        data = dataclasses.replace(config.data, tokenizer=str(tmp_path / "vocab.txt"))  # type: ignore[type-var]
        other = dataclasses.replace(config, data=data)
        refused(other, tmp_path / "run", rf"vocab\.txt have different vocabularies: .*{remedy}")


def test_forgetting_corpus_with_another_vocabulary_is_rejected(folder):
    model, prepared = corpus_model(folder), folder / "other" / "prepared"
    message = r"model and .*prepared have different vocab.*bert-jax prepare --tokenizer model`"
    with pytest.raises(UserError, match=message):
        fisher.fisher_information(model, prepared)
    after = dataclasses.replace(model, tokenizer=PreparedCorpus(prepared).tokenizer())
    with pytest.raises(UserError, match="model and model have different vocabularies"):
        forgetting.measure_forgetting(model, after, folder / "train" / "prepared")


def test_missing_heads_are_named(folder, tmp_path, caplog):
    export(corpus_model(folder, only=("encoder", "pooler")), tmp_path / "headless")
    for model, line in (
        (tmp_path / "headless", "has no matching parameters: masked-LM head, next-sentence head"),
        (folder / "model", ""),
    ):
        config = adapt(folder / "train" / "prepared", model)
        grid = sharding.make_mesh(make_mesh_config("dp"))
        setup = TrainSetup.from_experiment(config, grid)
        caplog.clear()
        initialize_or_load(setup)
        expected = [f"randomly initialized, because {model} {line}"] if line else []
        assert caplog.messages == expected
