"""Compares ONNX files and bundles in the server with the models they were made from."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.encoder_services import Work
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.run import load_models
from bert_jax.apps.serve.served_models import ServedModel, serve_model
from bert_jax.apps.serve.shipped import OnnxBackend
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.bundle import export_bundle
from bert_jax.export.onnx.write import write_onnx
from bert_jax.export.outputs import shipped_network
from bert_jax.models.sentence_encoder.config import Normalize, SentenceEncoderConfig
from bert_jax.pretrained.load import LoadedModel

TEXTS = ["the old man", "a net by the sea", "sings"]
QUESTION = ("the man sings", "the old man by the sea")
CONFIG = ServerConfig(
    max_batch_rows=1, max_length=16, warm_up="all"
)  # one shape, so one program of each model


@pytest.fixture(scope="module")
def sentences(models: dict[str, LoadedModel]) -> LoadedModel:
    config = SentenceEncoderConfig(modules=(Normalize(),), truncate_dim=9)
    return dataclasses.replace(models["encoder"], sentence_encoder=config)


@pytest.fixture(scope="module")
def bundle(models: dict[str, LoadedModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("bundles") / "names", models["names"]
    assert model.tokenizer is not None
    export_bundle(shipped_network(model), model.tokenizer, folder)
    return folder


def serve_onnx(model: LoadedModel, folder: Path) -> ServedModel:
    assert model.tokenizer is not None
    write_onnx(shipped_network(model), model.tokenizer, folder, "fp32")
    model = dataclasses.replace(model, path=str(folder))
    (served,) = serve_model("model", model, CONFIG, backend=OnnxBackend(model, "fp32"))
    return served


def work_of(served: ServedModel) -> Work[Any]:
    """Returns a request that the model can answer."""
    match served.abilities[0]:
        case "embed":
            assert served.embedding is not None
            return served.embedding.embed(TEXTS)
        case "fill_mask":
            assert served.fill_mask is not None
            return served.fill_mask.fill(["the [MASK] man", "[MASK] by [MASK]"], 3)
        case ability:
            assert served.task is not None
            if ability == "tag":
                return served.task.tag(TEXTS)
            return (
                served.task.answer([QUESTION])
                if ability == "answer"
                else served.task.predict(list(TEXTS))
            )


def run(work: Work[Any]) -> Any:
    work.engine.compile_all()
    outputs = [work.engine.run([sequence])[0] for sequence in work.sequences]
    return work.decode(outputs)


def flatten(answer: Any) -> tuple[list[Any], list[float]]:
    """Returns the words and the numbers of an answer."""
    if isinstance(answer, np.ndarray):
        answer = answer.tolist()
    if isinstance(answer, dict):
        answer = [item for pair in sorted(answer.items()) for item in pair]
    if isinstance(answer, list):
        parts = [flatten(each) for each in answer]
        return [w for part in parts for w in part[0]], [n for part in parts for n in part[1]]
    return ([], [answer]) if isinstance(answer, float) else ([answer], [])


def write_external_onnx(file: Path) -> None:
    """Writes a file of another program, with names of its own."""

    def value(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "length"])

    names = ["input_ids", "position_ids"]
    add = onnx.helper.make_node("Add", names, ["scores"])
    graph = onnx.helper.make_graph(
        [add], "external", [value(name) for name in names], [value("scores")]
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), file)


@pytest.mark.parametrize("name", ["reviews", "emotions", "relevance", "questions"])
def test_answers_of_onnx_files_equal_those_of_the_model(models, name, tmp_path):
    (plain,) = serve_model("model", models[name], CONFIG)
    shipped = serve_onnx(models[name], tmp_path)
    assert shipped.abilities == tuple(each for each in plain.abilities if each != "attention")
    found, expected = (flatten(run(work_of(served))) for served in (shipped, plain))
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


def test_filled_masks_of_an_onnx_file_equal_those_of_the_model(models, tmp_path):
    (plain,) = serve_model("model", models["encoder"], CONFIG)
    shipped = serve_onnx(models["encoder"], tmp_path)
    assert shipped.abilities == ("fill_mask",) and plain.fill_mask is not None
    expected = run(plain.fill_mask.fill(["the [MASK] man", "[MASK] by [MASK]"], 3))
    found = flatten(run(work_of(shipped)))
    assert found[0] == flatten(expected)[0]
    np.testing.assert_allclose(found[1], flatten(expected)[1], atol=1e-5)


def test_vectors_of_an_onnx_file_equal_those_of_the_model(sentences, tmp_path):
    (plain,) = serve_model("model", sentences, CONFIG)
    shipped = serve_onnx(sentences, tmp_path)
    assert shipped.embedding is not None and plain.embedding is not None
    expected = run(plain.embedding.embed(TEXTS))
    assert expected.shape == (3, 9)
    np.testing.assert_allclose(run(work_of(shipped)), expected, atol=1e-5)
    with pytest.raises(RequestError, match="expected `normalize`: true"):
        shipped.embedding.embed(TEXTS, normalize=False)


def test_bundle_is_compiled_before_it_answers(models, bundle):
    (plain,) = serve_model("model", models["names"], CONFIG)
    (shipped,) = load_models([str(bundle)], [], CONFIG)
    assert shipped.name == "names" and shipped.abilities == ("tag",)
    found, expected = (flatten(run(work_of(served))) for served in (shipped, plain))
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
    compiled: list[str] = []

    def record(event: str, duration_secs: float, **kwargs: str | int) -> None:
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        work = work_of(shipped)
        work.engine.run(work.sequences[:1])
    finally:
        jax.monitoring.unregister_event_duration_listener(record)
    assert not any("compile" in event for event in compiled)


def test_files_that_are_missing_or_of_an_earlier_version_are_refused(models, bundle, tmp_path):
    model = dataclasses.replace(models["reviews"], path=str(tmp_path))
    with pytest.raises(UserError, match=r"model_quantized.onnx does not exist; .*--onnx int8"):
        OnnxBackend(model, "int8")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match=r"model.onnx cannot be read by onnxruntime"):
        OnnxBackend(model, "fp32")
    write_external_onnx(tmp_path / "onnx" / "model.onnx")
    message = r"reads input_ids, position_ids and computes scores; expected the inputs input_ids, "
    with pytest.raises(UserError, match=message + ".* outputs logits, .* --onnx fp32"):
        OnnxBackend(model, "fp32")
    with pytest.raises(ConfigError, match="is a bundle, which has no ONNX files; leave out --onnx"):
        load_models([str(bundle)], [], CONFIG, "int8")
    with pytest.raises(ConfigError, match=r"--max-length is 4096; the models take .* at most"):
        load_models([str(bundle)], [], ServerConfig(max_length=4096))
    with pytest.raises(ConfigError, match="exported files, which have no adapters"):
        load_models([f"a={bundle}"], ["x=folder"], CONFIG)
    file = bundle / "bundle.json"
    info = json.loads(file.read_text())
    try:
        file.write_text(json.dumps({**info, "model": None}))
        with pytest.raises(UserError, match="do not describe their model; make the bundle again"):
            load_models([str(bundle)], [], CONFIG)
    finally:
        file.write_text(json.dumps(info))
