"""Reads the text of mail: mbox files, single messages, and messages of newsgroups."""

import email
import email.header
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.errors import MessageError
from email.message import Message
from typing import ClassVar

from bert_jax.apps.curate.formats.decoding import decode_bytes
from bert_jax.apps.curate.formats.html import NESTED, page_document
from bert_jax.apps.curate.formats.patterns import FilePatterns, read_limited
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument

NO_TEXT_PART = "no text part"

MAX_MAILBOX_BYTES = 1 << 30
_MAX_PARTS = 100
_MESSAGE_START = re.compile(rb"^From [^\n]*\n", re.MULTILINE)
# "> text" and "ann> text"; "Ann wrote:" before it.
_QUOTED = re.compile(r"[ \t]{0,3}(?:[A-Za-z]{0,3}[>|]|:[ \t])")
_ATTRIBUTION = re.compile(r"(?:wrote|writes|said|schrieb|a écrit|escribió)[^\n]{0,80}:\s*$")
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)


@dataclass(frozen=True)
class MailFiles(FilePatterns):
    """Names mbox files and files of one message: `MailFiles("archive/*.mbox.gz")`.

    A message is a document. Headers, quoted lines, signatures and attachments are left out; the
    shards have the subject.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("resiliparse", "charset-normalizer")

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the messages in order, numbered from 1."""
        data = read_limited(file.path, MAX_MAILBOX_BYTES)
        if isinstance(data, RawDocument):
            yield data
            return
        starts = [match.end() for match in _MESSAGE_START.finditer(data)]
        if not data.startswith(b"From "):
            starts = [0]  # one message; a line of it may begin with "From "
        ends = [*(data.rfind(b"From ", 0, start) for start in starts[1:]), len(data)]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), start=1):
            try:
                yield _message_document(str(number), data[start:end])
            except RecursionError:  # hundreds of parts inside each other
                yield RawDocument(key=str(number), reason=NESTED)


def message_text(text: str) -> str:
    """Returns the text of a message without quoted lines and without the signature."""
    if signature := _SIGNATURE.search(text):
        text = text[: signature.start()]
    lines: list[str] = []
    for line in text.split("\n"):
        if _QUOTED.match(line):
            if lines and _ATTRIBUTION.search(lines[-1]):
                lines.pop()
            continue
        lines.append(line)
    return "\n".join(lines).strip()


def _message_document(key: str, data: bytes) -> RawDocument:
    message = email.message_from_bytes(data)
    found: RawDocument | None = None
    for number, part in enumerate(message.walk()):
        kind = part.get_content_type()
        is_attachment = part.get_content_disposition() == "attachment"
        if number >= _MAX_PARTS:
            break
        if is_attachment or kind not in ("text/plain", "text/html"):
            continue
        if kind == "text/plain":  # the first plain part rather than the same text as HTML
            found = _part_document(key, part)
            break
        found = found or _part_document(key, part)
    if found is None or not found.text:
        return found if found and found.reason else RawDocument(key=key, reason=NO_TEXT_PART)
    fields = {"subject": " ".join(_header(message, "Subject").split())}
    return RawDocument(key=key, text=found.text, counts=found.counts, fields=fields)


def _part_document(key: str, part: Message) -> RawDocument:
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    declared = str(part.get_content_charset() or "")
    if part.get_content_type() == "text/html":
        return page_document(key, data, declared, main_content=False)
    decoded = decode_bytes(data, declared)
    text = message_text(decoded.text.replace("\r\n", "\n"))
    return RawDocument(key=key, text=text, counts={f"encoding: {decoded.encoding}": 1})


def _header(message: Message, name: str) -> str:
    """Returns a header with its encoded words decoded."""
    value = str(message.get(name, ""))
    try:
        return str(email.header.make_header(email.header.decode_header(value)))
    except (MessageError, LookupError, ValueError):
        return value
