"""A cross-encoder in ONNX format from a directory. The models of these tests have weights set by hand."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from mnemesh_retrieval.errors import RerankerError, RerankerMisconfigured
from mnemesh_retrieval.rerankers.registry import RerankerSettings, make_reranker

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "boat", "sold", "rain"]
WEIGHTS = [0.0, 0.0, 0.0, 0.0, 2.0, 1.0, -3.0]


def write_model(
    directory: Path, *, outputs: int = 1, inputs: tuple[str, ...] = ("input_ids", "attention_mask")
) -> None:
    """Writes a model whose logit is the sum of the weights of the tokens that the mask keeps."""
    from onnx import TensorProto, helper, numpy_helper, save

    table = np.array([[weight] for weight in WEIGHTS], dtype=np.float32)
    if outputs > 1:
        table = np.hstack([np.zeros((len(WEIGHTS), outputs - 1), dtype=np.float32), table])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["logits"], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "middle"),
    ]
    graph = helper.make_graph(
        nodes,
        "cross-encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", outputs])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, directory / "model.onnx")


def write_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


async def scores(directory: Path, texts: list[str]) -> list[float]:
    reranker = make_reranker("onnx/own", RerankerSettings(directory=str(directory)))
    try:
        return await reranker.rerank("who ?", texts)
    finally:
        await reranker.close()


async def test_texts_are_scored_in_their_order_whatever_their_length(directory: Path) -> None:
    texts = ["rain", "sold a boat " + "a " * 40, *["a"] * 20, "boat", "sold"]
    found = await scores(directory, texts)
    assert found[0] == pytest.approx(1 / (1 + np.exp(3)), abs=1e-6)
    assert found[1] == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-6), "padding does not count"
    assert found[2:22] == pytest.approx([0.5] * 20)
    assert sorted(range(len(texts)), key=lambda index: -found[index])[:3] == [1, 22, 23]


async def test_a_text_beyond_the_token_limit_is_read_in_part(directory: Path) -> None:
    assert await scores(directory, ["boat " + "a " * 5_000 + "rain"]) == pytest.approx([1 / (1 + np.exp(-2))])


async def test_two_logits_are_a_probability_of_the_second(directory: Path) -> None:
    write_model(directory, outputs=2)
    assert await scores(directory, ["boat"]) == pytest.approx([1 / (1 + np.exp(-2))])


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        ("outputs", RerankerError, "3 logits per text"),
        ("inputs", RerankerMisconfigured, "unknown inputs: pixels"),
        ("model", RerankerMisconfigured, "cannot be loaded"),
        ("tokenizer", RerankerMisconfigured, "cannot be loaded"),
        ("missing", RerankerMisconfigured, "has no tokenizer.json"),
    ],
)
async def test_unusable_model_is_an_error(
    directory: Path, damage: str, error: type[RerankerError], message: str
) -> None:
    match damage:
        case "outputs":
            write_model(directory, outputs=3)
        case "inputs":
            write_model(directory, inputs=("input_ids", "attention_mask", "pixels"))
        case "model":
            (directory / "model.onnx").write_bytes(b"\x00\x01 not a model")
        case "tokenizer":
            (directory / "tokenizer.json").write_text(json.dumps({"version": "9"}))
        case "missing":
            (directory / "tokenizer.json").unlink()
    with pytest.raises(error, match=message):
        await scores(directory, ["boat"])


def test_missing_package_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        RerankerMisconfigured,
        match=r"onnxruntime is not installed. Install it: .*pip install .*'onnxruntime>=1",
    ):
        make_reranker("onnx/own", RerankerSettings(directory=str(directory)))
