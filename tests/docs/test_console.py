"""Every ```console block of docs is run, and prints what the page says."""

from __future__ import annotations

import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import console  # noqa: E402
from tests.node import WithNode  # noqa: E402

PAGES_AT_ONCE = 4
DOCS = [console.ROOT / "README.md", *sorted((console.ROOT / "docs").glob("*.md"))]


class Console(WithNode):
    def test_pages(self) -> None:
        pages = [path for path in DOCS if console.BLOCK.search(path.read_text("utf-8"))]
        self.assertGreater(len(pages), 0)
        # They wait more than they work.
        with ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
            for path, checked in zip(pages, [pool.submit(console.check, path, self.node) for path in pages]):
                with self.subTest(path.name):
                    self.assertGreater(checked.result(), 0)

    def test_what_is_alike(self) -> None:
        page = console.Page.__new__(console.Page)
        page.positions = {}
        first = '{"fence":"6","since":"2026-11-30T00:03:50.450Z","version":"7","index":"8"}'
        self.assertTrue(page.alike(first, '{"fence":"9","since":"2027-01-01T00:00:00.000Z","version":"10","index":"10"}', bind=True))
        self.assertEqual(page.positions, {"6": "9", "7": "10"})
        self.assertFalse(page.alike('{"fence":"6"}', '{"fence":"10"}', bind=True), "the same one is the same one")
        self.assertFalse(page.alike('{"attempt":1}', '{"attempt":2}', bind=True))
        self.assertFalse(page.alike('{"state":"completed"}', '{"state":"expired"}', bind=True))
        self.assertTrue(page.alike("k2   charge  6", "k2 charge 9", bind=True))
        page.ports = {7171: 20_000, 7181: 20_010}
        self.assertEqual(page.actual("semel complete a b --fence 6 --endpoint http://127.0.0.1:7181"),
                         "semel complete a b --fence 9 --endpoint http://127.0.0.1:20010")
        self.assertEqual(page.actual('{"fence":"6","amount":7}'), '{"fence":"9","amount":7}')
        self.assertEqual(page.actual('"{\\"fence\\":\\"6\\"}"'), '"{\\"fence\\":\\"9\\"}"')
        page.compare("c", ["a", "…", "b"], ["a", "x", "y", "b"])
        self.assertRaises(console.Mismatch, page.compare, "c", ["a"], ["a", "b"])
        self.assertRaises(console.Mismatch, page.compare, "c", ["a", "b"], ["a"])


if __name__ == "__main__":
    unittest.main()
