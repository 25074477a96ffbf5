"""Chooses the example texts of the server's page: of the model's language and for its labels."""

import functools
import unicodedata
from collections import Counter

from bert_jax.apps.serve.served_models import ServedModel
from bert_jax.text.tokenizer import Tokenizer

# Script as it begins the names of Unicode -> "The ship left the MASK at dawn.", and the word.
_SENTENCES = {
    "LATIN": ("The ship left the {} at dawn.", "harbor"),
    "CYRILLIC": ("Корабль вышел из {} на рассвете.", "порта"),
    "ARABIC": ("غادرت السفينة {} عند الفجر.", "الميناء"),
    "DEVANAGARI": ("जहाज़ भोर में {} से निकला।", "बंदरगाह"),
    "CJK": ("船在黎明时离开了{}口。", "港"),
    "HIRAGANA": ("船は夜明けに{}を出た。", "港"),
    "HANGUL": ("배는 새벽에 {}를 떠났다.", "항구"),
}
_NUM_SAMPLED_TOKENS = 5000
_PREMISE = "A gentle, funny film that stays with you for days."
_HYPOTHESIS = "The film is good."
_QUERY, _PASSAGE = "How do bees make honey?", "Bees turn nectar into honey in the hive."


def example_texts(model: ServedModel) -> dict[str, dict[str, str]]:
    """Returns tab of the page -> field -> text, where the page's own text does not suit a model."""
    script = main_script(model.tokenizer)
    sentence, word = _SENTENCES[script]
    mask = model.tokenizer.special_tokens.mask
    examples = {"fill": {"text": sentence.format(mask)}} if mask else {}
    if script != "LATIN":
        text = {"text": sentence.format(word)}
        return examples | dict.fromkeys(("classify", "tag", "attention"), text)
    labels = {label.lower() for label in model.task.labels} if model.task is not None else set()
    if any(label.startswith(("entail", "not_entail")) for label in labels):
        examples["classify"] = {"text": _PREMISE, "pair": _HYPOTHESIS}
    elif model.task is not None and model.task.kind.name == "ranking":
        examples["classify"] = {"text": _QUERY, "pair": _PASSAGE}
    return examples


@functools.cache
def main_script(tokenizer: Tokenizer) -> str:
    """Returns the script of `_SENTENCES` in which most tokens with letters of a sample are written.

    A vocabulary of several languages, or of bytes, is mostly Latin. Japanese has few tokens of kana
    only, so any share of a tenth counts.
    """
    step = max(1, len(tokenizer) // _NUM_SAMPLED_TOKENS)
    letters = (
        char
        for token_id in range(0, len(tokenizer), step)
        for char in tokenizer.id_to_token(token_id)
        if char.isalpha()
    )
    scripts = Counter(unicodedata.name(char, "").split(" ")[0].split("-")[0] for char in letters)
    scripts["HIRAGANA"] += scripts.pop("KATAKANA", 0)
    if 10 * scripts["HIRAGANA"] > scripts.total():
        return "HIRAGANA"
    return max(_SENTENCES, key=lambda script: scripts[script])
