"""Defines edits of documents: private data is replaced, wrongly decoded text repaired.

Names of people remain: removing them harms models that recognize entities. The replacements are
plain words, because placeholders such as |||EMAIL_ADDRESS||| become a dozen tokens.
"""

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass

from bert_jax.apps.curate.formats.decoding import repair_mojibake

# The parts have limits of RFC 5321, which also bounds the time on lines without spaces.
_EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9_%+-][A-Za-z0-9._%+-]{0,63}@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,8}[A-Za-z]{2,24}(?![\w-])"
)
_IP = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
# "version 1.2.3.4", "v. 1.2.3.4", "section 2.1.3.4" are no addresses.
_NUMBERED = re.compile(
    r"(?:version|ver|release|section|chapter|build|rev|v|§)\.?\s*$", re.IGNORECASE
)
_CONTEXT_CHARACTERS = 12


@dataclass(frozen=True, kw_only=True)
class ReplacePrivateData:
    """Replaces e-mail addresses and public IP addresses by fixed words; None leaves them."""

    email: str | None = "email address"
    ip: str | None = "IP address"

    def apply(self, text: str, counts: Counter[str]) -> str:
        """Returns the text with replacements; adds their numbers to `counts`."""

        def replace_ip(match: re.Match[str]) -> str:
            before = text[max(0, match.start() - _CONTEXT_CHARACTERS) : match.start()]
            if _NUMBERED.search(before) or not _is_public(match[0]):
                return match[0]
            counts["private data: IP address"] += 1
            return str(self.ip)

        if self.ip is not None:
            text = _IP.sub(replace_ip, text)
        if self.email is not None and "@" in text:
            text, number = _EMAIL.subn(self.email, text)
            if number:
                counts["private data: e-mail address"] += number
        return text


@dataclass(frozen=True, kw_only=True)
class RepairMojibake:
    """Repairs text that was decoded with the wrong encoding: "cafÃ©" becomes "café"."""

    def apply(self, text: str, counts: Counter[str]) -> str:
        """Returns the repaired text; adds 1 to `counts` if it changed."""
        repaired = repair_mojibake(text)
        if repaired != text:
            counts["mojibake: repaired documents"] += 1
        return repaired


def _is_public(address: str) -> bool:
    try:
        return ipaddress.IPv4Address(address).is_global
    except ValueError:
        return False
