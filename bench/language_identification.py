"""Measures how often the language of a paragraph is identified, on a translated manual.

    apt-get download installation-guide-amd64
    dpkg-deb -x installation-guide-amd64_*.deb guide
    python bench/language_identification.py guide/usr/share/doc/installation-guide-amd64

The folder has one folder of HTML pages for each of 19 languages, whose name is the right answer. A
paragraph is the text of a `<p>` element of at least 200 characters; one that is also in the English
folder was not translated, and counts as English there only.
"""

import argparse
from collections import Counter
from pathlib import Path

from lxml import html

from bert_jax.apps.curate.model_signals import language_probabilities

MIN_CHARACTERS = 200
ENGLISH = "en"


def main() -> None:
    """Prints a Markdown table of the fraction of paragraphs that are identified."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with a folder for each language")
    args = parser.parse_args()
    english = paragraphs(args.folder / ENGLISH)
    num_correct = num_paragraphs = 0
    print("| language | paragraphs | identified | taken for |\n|---|---|---|---|")
    for folder in sorted(path for path in args.folder.iterdir() if path.is_dir()):
        texts = english if folder.name == ENGLISH else paragraphs(folder) - english
        if not texts:
            continue  # for example, a folder of images
        language = folder.name.partition("_")[0]
        found = Counter(probable_language(text) for text in texts)
        correct = found.pop(language, 0)
        others = ", ".join(f"{name} {count}" for name, count in found.most_common(3))
        print(f"| {folder.name} | {len(texts)} | {correct / len(texts):.1%} | {others} |")
        num_correct, num_paragraphs = num_correct + correct, num_paragraphs + len(texts)
    print(f"| all | {num_paragraphs} | {num_correct / num_paragraphs:.1%} | |")


def paragraphs(folder: Path) -> set[str]:
    """Returns the different paragraphs of the pages in a folder that are long enough."""
    texts: set[str] = set()
    for page in sorted(folder.glob("*.html")):
        for element in html.parse(str(page)).iter("p"):
            text = " ".join(element.text_content().split())
            if len(text) >= MIN_CHARACTERS:
                texts.add(text)
    return texts


def probable_language(text: str) -> str:
    """Returns the code of the most probable language."""
    probabilities = language_probabilities(text)
    return max(probabilities, key=lambda code: probabilities[code])


if __name__ == "__main__":
    main()
