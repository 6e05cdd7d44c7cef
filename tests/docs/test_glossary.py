"""The glossary has each term once."""

from __future__ import annotations

import re
from collections import Counter

from tests.helpers.checkout import ROOT


def test_the_glossary_has_each_term_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "docs" / "reference" / "glossary.md").read_text(), re.M)
    terms = Counter(term for row in rows for term in row.split(", ") if row != "term")
    assert len(terms) > 80
    assert not [term for term, count in terms.items() if count > 1]
