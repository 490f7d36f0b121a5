"""Scheme 1 against the published vectors, and against the service where they say nothing."""

import doctest
import json
import random
import struct
import unittest
from decimal import Decimal
from pathlib import Path

import semel.fingerprint
from semel.fingerprint import Fingerprint, FingerprintError, Part, canonical, canonical_text

VECTORS = json.loads(
    (Path(__file__).resolve().parents[3] / "tests" / "vectors" / "fingerprint-v1.json").read_text("utf-8")
)


class Vectors(unittest.TestCase):
    def test_json(self) -> None:
        for vector in VECTORS["json"]:
            with self.subTest(vector["text"]):
                self.assertEqual(canonical_text(vector["text"]), vector["canonical"])
                self.assertEqual(Fingerprint.json_text(vector["text"]).hex, vector["digest"])
                self.assertEqual(Fingerprint.json_text(vector["canonical"].encode()).hex, vector["digest"])

    def test_refused(self) -> None:
        self.assertGreater(len(VECTORS["json_refused"]), 5)
        for text in VECTORS["json_refused"]:
            with self.subTest(text), self.assertRaises(FingerprintError):
                Fingerprint.json_text(text)

    def test_raw(self) -> None:
        for vector in VECTORS["raw"]:
            self.assertEqual(Fingerprint.raw(bytes.fromhex(vector["hex"])).hex, vector["digest"])

    def test_multipart(self) -> None:
        for vector in VECTORS["multipart"]:
            parts = [
                Part(bytes.fromhex(part["hex"]), part["name"], part["filename"], part["content_type"])
                for part in vector["parts"]
            ]
            self.assertEqual(Fingerprint.multipart(parts).hex, vector["digest"])

    def test_http(self) -> None:
        for vector in VECTORS["http"]:
            body = Fingerprint(1, bytes.fromhex(vector["body_digest"]), vector["form"])
            headers = [(name, value) for name, value in vector["headers"]]
            found = Fingerprint.http(vector["method"], vector["path"], vector["query"], headers, body)
            self.assertEqual(found.hex, vector["digest"])


class Numbers(unittest.TestCase):
    def test_exponents_cost_no_more_than_their_text(self) -> None:
        for text, expected in [
            ("0e999999999999999999999", "0"),
            ("-0.000e-999999999999999999999", "0"),
            ("1e-1000000000", "0"),
            ("-1e-99999999999999999999999999", "0"),
            ("1e" + "9" * 50_000, None),
            ("1e-" + "9" * 50_000, "0"),
            ("-1.5e99999999999999999999999999", None),
            ("1.5e309", "15" + "0" * 308),
            ("1.5e308", "15" + "0" * 307),
            ("2" * 309 + ".5", None),
            ("7" * 1024, "7" * 1024),
            ("7" * 1025, None),
            ("7" * 5000, None),
            ("0." + "0" * 50_000 + "15e50001", "1.5"),
            ("15" + "0" * 50_000 + ".0e-50000", "15"),
            ("9007199254740993.0", "9007199254740993"),
            ("9007199254740993.5", "9007199254740994"),
            ("5e-324", "5e-324"),
            ("2e-324", "0"),
            ("1.7976931348623157e308", "17976931348623157" + "0" * 292),
        ]:
            with self.subTest(text[:40]):
                if expected is None:
                    self.assertRaises(FingerprintError, canonical_text, text)
                else:
                    self.assertEqual(canonical_text(text), expected)

    def test_doubles_as_ecmascript_writes_them(self) -> None:
        # From RFC 8785, appendix B: those that are no integers.
        for bits, expected in [
            ("0000000000000001", "5e-324"),
            ("3ff199999999999a", "1.1"),
            ("3eb0c6f7a0b5ed8d", "0.000001"),
            ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
            ("41b3de4355555553", "333333333.3333332"),
            ("41b3de4355555554", "333333333.33333325"),
            ("41b3de4355555555", "333333333.3333333"),
            ("41b3de4355555556", "333333333.3333334"),
            ("41b3de4355555557", "333333333.33333343"),
            ("becbf647612f3696", "-0.0000033333333333333333"),
        ]:
            (value,) = struct.unpack(">d", bytes.fromhex(bits))
            self.assertEqual(canonical(value), expected)

    def test_a_double_reads_back_as_itself(self) -> None:
        draw = random.Random(7)
        for _ in range(5000):
            (value,) = struct.unpack(">d", draw.randbytes(8))
            if value == value and abs(value) != float("inf"):
                self.assertEqual(float(canonical(value)), value)

    def test_values_count_as_their_text(self) -> None:
        for value in [1e22, 1e23, 123456789.0, -0.0, 2**70, -(2**64), 0.1 + 0.2, 1e-7]:
            self.assertEqual(canonical(value), canonical_text(json.dumps(value)))
        self.assertEqual(canonical(Decimal("1.10")), "1.1")
        self.assertEqual(canonical(Decimal("1E+2")), "100")
        self.assertEqual(canonical(Decimal("9007199254740993")), "9007199254740993")
        for value in [float("nan"), float("inf"), Decimal("NaN"), 10**1024, b"bytes", {1: 2}, {"a": {1, 2}}]:
            self.assertRaises(FingerprintError, canonical, value)
        self.assertEqual(canonical(10**1023), "1" + "0" * 1023)
        self.assertEqual(canonical([True, False, None, (1, 2)]), "[true,false,null,[1,2]]")


class Ignored(unittest.TestCase):
    def test_parts_are_left_out(self) -> None:
        text = '{"a":1,"b":[1,{"c":2,"d":3},4],"~/":5}'
        for pointers, expected in [
            (["/a"], '{"b":[1,{"c":2,"d":3},4],"~/":5}'),
            (["/b/0", "/b/1/c"], '{"a":1,"b":[{"d":3},4],"~/":5}'),
            (["/b/0", "/b/1", "/b/2"], '{"a":1,"b":[],"~/":5}'),
            (["/b/00", "/b/-", "/b/9", "/zz/1"], canonical_text(text)),
            (["/~0~1"], '{"a":1,"b":[1,{"c":2,"d":3},4]}'),
            (["/a", "/b", "/~0~1"], "{}"),
        ]:
            self.assertEqual(canonical_text(text, pointers), expected)
        for pointers in [[""], ["a"], ["/~2"], ["/a~"], ["/a"] * 17]:
            self.assertRaises(FingerprintError, canonical_text, text, pointers)

    def test_what_is_left_out_may_be_any_number_and_no_deeper(self) -> None:
        self.assertEqual(canonical_text('{"a":1e99999,"b":1}', ["/a"]), '{"b":1}')
        deep = '{"a":' + "[" * 64 + "]" * 64 + "}"
        self.assertRaises(FingerprintError, canonical_text, deep, ["/a"])
        self.assertRaises(FingerprintError, canonical_text, '{"a":"\\ud800"}', ["/a"])
        self.assertRaises(FingerprintError, canonical_text, "[" * 100_000)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, _: object) -> unittest.TestSuite:
    tests.addTests(doctest.DocTestSuite(semel.fingerprint))
    return tests


if __name__ == "__main__":
    unittest.main()
