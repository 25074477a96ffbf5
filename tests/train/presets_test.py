"""Covers bert_jax/train/presets.py: numbers of updates; other tests run the experiments."""

from pathlib import Path

from bert_jax.data.config import FineTuningData
from bert_jax.data.finetuning.config import Columns, Windows
from bert_jax.export.export import export
from bert_jax.testing.models import small_model
from bert_jax.train.presets import fine_tuning_experiment


def test_updates_are_those_of_the_windows_with_the_chosen_overlap(tmp_path: Path):
    export(small_model(tmp_path / "vocabulary"), tmp_path / "model")
    (tmp_path / "train.csv").write_text(f"text,label\n{'sea ' * 40},yes\n{'net ' * 4},no\n")
    task = Columns(train=str(tmp_path / "train.csv"), text="text", label="label")
    updates = {}
    for overlap in (2, 8):
        experiment = fine_tuning_experiment(
            task,
            str(tmp_path / "model"),
            epochs=1,
            batch_size=1,
            max_length=18,  # with [CLS] and [SEP], 16 tokens of the text
            truncation=Windows(),
            window_overlap=overlap,
        )
        assert isinstance(experiment.data, FineTuningData)
        assert experiment.data.window_overlap == overlap
        updates[overlap] = experiment.train.phases[0].steps
    # Windows of 40 tokens start every 14 or every 8 tokens; the other text is one window.
    assert updates == {2: 3 + 1, 8: 4 + 1}
