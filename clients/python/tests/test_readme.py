"""The README's examples are run, and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
import unittest
from pathlib import Path

from .node import WithNode

README = (Path(__file__).resolve().parents[1] / "README.md").read_text("utf-8")


class Readme(WithNode):
    def test_the_examples(self) -> None:
        blocks = re.findall(r"^```python\n(.*?)^```\n(?:\nIt prints\n\n```\n(.*?)^```\n)?", README, re.S | re.M)
        self.assertEqual(len(blocks), 4)
        names: dict = {}
        for code, expected in blocks[:3]:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code.replace("http://127.0.0.1:7171", self.node.endpoint), "README.md", "exec"), names)
            self.assertEqual(out.getvalue(), expected)
        names["client"].close()

    def test_every_exception_is_in_the_table(self) -> None:
        import semel

        for name in semel.__all__:
            kind = getattr(semel, name)
            if isinstance(kind, type) and issubclass(kind, semel.SemelError) and kind is not semel.SemelError:
                if name not in ("ConfigurationError", "ProtocolError", "NoEffect"):
                    self.assertIn(f"`{name}`", README)


if __name__ == "__main__":
    unittest.main()
