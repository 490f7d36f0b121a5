"""Links of the docs lead somewhere: to a file that is there, and a heading in it."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from typing import Set

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "clients/python/README.md", "src/ARCHITECTURE.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def headings(path: Path) -> Set[str]:
    """The anchors of a page, as its readers make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.S | re.M)
    found = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


class Links(unittest.TestCase):
    def test_they_lead_somewhere(self) -> None:
        count = 0
        for page in PAGES:
            text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.S | re.M)
            for link in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = (page.parent / file).resolve() if file else page
                count += 1
                with self.subTest(page=page.name, link=link):
                    self.assertTrue(target.exists(), "no such file")
                    if anchor:
                        self.assertIn(anchor, headings(target), "no such heading")
        self.assertGreater(count, 50)


if __name__ == "__main__":
    unittest.main()
