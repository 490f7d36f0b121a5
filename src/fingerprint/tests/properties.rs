//! One value, however it is written, has one fingerprint; another value has another.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fingerprint::canonical::utf16_order;

/// A JSON value by meaning: what two texts must share to be the same request.
#[derive(Debug, Clone, PartialEq)]
enum Meaning {
    Null,
    Bool(bool),
    Number(Decimal),
    String(String),
    Array(Vec<Meaning>),
    Object(BTreeMap<String, Meaning>),
}

/// ±digits × 10^exponent; the digits neither begin nor end with a zero, or they are `0`.
#[derive(Debug, Clone, PartialEq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i32,
}

fn decimal() -> impl Strategy<Value = Decimal> {
    let nonzero = (any::<bool>(), "[1-9]([0-9]{0,12}[1-9])?", -30..30)
        .prop_map(|(negative, digits, exponent)| Decimal { negative, digits, exponent });
    let zero = any::<bool>().prop_map(|negative| Decimal { negative, digits: "0".into(), exponent: 0 });
    prop_oneof![9 => nonzero, 1 => zero]
}

fn meaning() -> impl Strategy<Value = Meaning> {
    let leaf = prop_oneof![
        Just(Meaning::Null),
        any::<bool>().prop_map(Meaning::Bool),
        decimal().prop_map(Meaning::Number),
        any::<String>().prop_map(Meaning::String),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Meaning::Array),
            prop::collection::btree_map(any::<String>(), inner, 0..5).prop_map(Meaning::Object),
        ]
    })
}

/// Writes a value in one of its many ways, as the seed decides.
struct Speller {
    seed: u64,
    out: String,
}

impl Speller {
    fn spell(meaning: &Meaning, seed: u64) -> String {
        let mut speller = Speller { seed, out: String::new() };
        speller.space();
        speller.value(meaning);
        speller.space();
        speller.out
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.seed >> 33).expect("31 bits fit") % sides
    }

    fn space(&mut self) {
        while self.roll(3) == 0 {
            let space = [' ', '\n', '\r', '\t'][self.roll(4)];
            self.out.push(space);
        }
    }

    fn value(&mut self, meaning: &Meaning) {
        match meaning {
            Meaning::Null => self.out.push_str("null"),
            Meaning::Bool(value) => self.out.push_str(&value.to_string()),
            Meaning::Number(decimal) => self.number(decimal),
            Meaning::String(string) => self.string(string),
            Meaning::Array(items) => {
                let items: Vec<(Option<&String>, &Meaning)> = items.iter().map(|item| (None, item)).collect();
                self.list('[', &items, ']');
            }
            Meaning::Object(members) => {
                let mut members: Vec<(Option<&String>, &Meaning)> = members.iter().map(|(n, v)| (Some(n), v)).collect();
                for index in (1..members.len()).rev() {
                    let other = self.roll(index + 1);
                    members.swap(index, other);
                }
                self.list('{', &members, '}');
            }
        }
    }

    fn list(&mut self, open: char, entries: &[(Option<&String>, &Meaning)], close: char) {
        self.out.push(open);
        self.space();
        for (index, (name, value)) in entries.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
                self.space();
            }
            if let Some(name) = name {
                self.string(name);
                self.space();
                self.out.push(':');
                self.space();
            }
            self.value(value);
            self.space();
        }
        self.out.push(close);
    }

    fn string(&mut self, string: &str) {
        self.out.push('"');
        for character in string.chars() {
            let must = matches!(character, '"' | '\\' | '\0'..='\x1f');
            let short = "\"\\/bfnrt".chars().zip("\"\\/\x08\x0c\n\r\t".chars()).find(|(_, of)| *of == character);
            match (self.roll(4), short) {
                (0, Some((letter, _))) => self.out.extend(['\\', letter]),
                (1, _) => self.unicode_escape(character),
                _ if must => self.unicode_escape(character),
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    fn unicode_escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let escape = if self.roll(2) == 0 { format!("\\u{unit:04x}") } else { format!("\\u{unit:04X}") };
            self.out.push_str(&escape);
        }
    }

    fn number(&mut self, decimal: &Decimal) {
        let length = i32::try_from(decimal.digits.len()).expect("few digits");
        // The point goes behind this many digits; more than there are adds zeros, fewer than one puts zeros before them.
        let point = i32::try_from(self.roll(30)).expect("30 fits") - 10;
        let exponent = decimal.exponent + length - point;
        let zeros = |count: i32| "0".repeat(usize::try_from(count.max(0)).expect("not negative"));
        let digits = format!("{}{}", decimal.digits, zeros(point - length));
        let (whole, mut fraction) = match usize::try_from(point) {
            Ok(point) if point > 0 => (digits[..point].to_owned(), digits[point..].to_owned()),
            _ => ("0".to_owned(), format!("{}{digits}", zeros(-point))),
        };
        // 0 has no digit that counts, so its zeros must not stand at the front.
        let whole = if decimal.digits == "0" { "0".to_owned() } else { whole };
        fraction.push_str(&"0".repeat(self.roll(3)));
        if decimal.negative {
            self.out.push('-');
        }
        self.out.push_str(&whole);
        if !fraction.is_empty() {
            self.out.push('.');
            self.out.push_str(&fraction);
        }
        if exponent != 0 || self.roll(2) == 0 {
            let sign = if exponent < 0 { "-" } else { ["", "+"][self.roll(2)] };
            let letter = ["e", "E"][self.roll(2)];
            let padding = ["", "0", "000"][self.roll(3)];
            self.out.push_str(&format!("{letter}{sign}{padding}{}", exponent.abs()));
        }
    }
}

/// Changes exactly one thing somewhere in the value: `choice` picks where and what. Returns whether anything was changed.
fn change(meaning: &mut Meaning, choice: &mut usize) -> bool {
    let mut pick = |options: usize| {
        let picked = *choice % options;
        *choice /= options;
        picked
    };
    let inner = match meaning {
        Meaning::Array(items) => items.len(),
        Meaning::Object(members) => members.len(),
        _ => 0,
    };
    if inner > 0 && pick(3) > 0 {
        let at = pick(inner);
        return match meaning {
            Meaning::Array(items) => change(&mut items[at], choice),
            Meaning::Object(members) => change(members.values_mut().nth(at).expect("it has that many"), choice),
            _ => unreachable!("only these have values within"),
        };
    }
    match (meaning, pick(3)) {
        (meaning @ Meaning::Null, _) => *meaning = Meaning::Bool(false),
        (Meaning::Bool(value), 0 | 1) => *value = !*value,
        (Meaning::Number(decimal), 0) if decimal.digits != "0" => decimal.exponent += 1,
        (Meaning::Number(decimal), 1) if decimal.digits != "0" => decimal.negative = !decimal.negative,
        (Meaning::Number(decimal), 1) => decimal.digits = "1".into(),
        (Meaning::String(string), 0) => string.push('\u{301}'),
        (Meaning::String(string), 1) if !string.is_empty() => drop(string.pop()),
        (Meaning::Array(items), 0) => items.push(Meaning::Null),
        (Meaning::Array(items), 1) if items.len() > 1 && items[0] != items[1] && !both_zero(&items[0], &items[1]) => {
            items.swap(0, 1);
        }
        (Meaning::Array(items), _) if !items.is_empty() => drop(items.pop()),
        (Meaning::Object(members), 0) => {
            let name = "x".repeat(1 + members.keys().map(String::len).max().unwrap_or(0));
            members.insert(name, Meaning::Null);
        }
        (Meaning::Object(members), 1) if !members.is_empty() => {
            let (mut name, value) = members.pop_last().expect("it isn't empty");
            name.push('!');
            members.insert(name, value);
        }
        (Meaning::Object(members), _) if !members.is_empty() => drop(members.pop_first()),
        (meaning, _) => *meaning = Meaning::Null,
    }
    true
}

/// 0 and −0 are one value, though not one meaning here.
fn both_zero(a: &Meaning, b: &Meaning) -> bool {
    let zero = |meaning: &Meaning| matches!(meaning, Meaning::Number(decimal) if decimal.digits == "0");
    zero(a) && zero(b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_value_has_one_fingerprint_however_written(meaning in meaning(), seeds: [u64; 2]) {
        let [first, second] = seeds.map(|seed| Speller::spell(&meaning, seed));
        prop_assert_eq!(canonical_text(&first).unwrap(), canonical_text(&second).unwrap());
        prop_assert_eq!(Fingerprint::json_text(&first).unwrap(), Fingerprint::json_text(&second).unwrap());
        let found = differences(&json(&first), &json(&second), &Ignore::default()).unwrap();
        prop_assert_eq!(found, Differences::default());
        // The canonical text is one of the ways to write the value, and its own canonical text.
        let text = canonical_text(&first).unwrap();
        prop_assert_eq!(canonical_text(&text).unwrap(), text);
    }

    #[test]
    fn another_value_has_another_fingerprint(meaning in meaning(), seeds: [u64; 2], mut choice: usize) {
        let mut other = meaning.clone();
        prop_assert!(change(&mut other, &mut choice));
        let (first, second) = (Speller::spell(&meaning, seeds[0]), Speller::spell(&other, seeds[1]));
        prop_assert_ne!(Fingerprint::json_text(&first).unwrap(), Fingerprint::json_text(&second).unwrap());
        let found = differences(&json(&first), &json(&second), &Ignore::default()).unwrap();
        prop_assert!(!found.places.is_empty());
        // Ignoring exactly these places makes the two alike again, unless it is the whole that differs.
        let listable = found.places.len() <= limits::FINGERPRINT_IGNORE_MAX;
        if listable && found.places.iter().all(|place| !place.pointer.is_empty()) {
            let ignore = Ignore::new(found.places.iter().map(|place| &place.pointer)).unwrap();
            let [first, second] = [first, second].map(|text| Fingerprint::json_without(&json(&text), &ignore).unwrap());
            prop_assert_eq!(first, second);
        }
    }

    #[test]
    fn numbers_follow_their_exact_value(decimal in decimal(), seed: u64) {
        let text = canonical_text(&Speller::spell(&Meaning::Number(decimal.clone()), seed)).unwrap();
        let sign = if decimal.negative && decimal.digits != "0" { "-" } else { "" };
        if decimal.exponent >= 0 {
            let zeros = "0".repeat(usize::try_from(decimal.exponent).unwrap());
            let expected = if decimal.digits == "0" { "0".into() } else { format!("{sign}{}{zeros}", decimal.digits) };
            prop_assert_eq!(text, expected);
        } else {
            let nearest: f64 = format!("{sign}{}e{}", decimal.digits, decimal.exponent).parse().unwrap();
            prop_assert_eq!(text.parse::<f64>().unwrap(), nearest);
            let mut buffer = ryu_js::Buffer::new();
            prop_assert_eq!(text, buffer.format(nearest));
        }
    }

    #[test]
    fn names_sort_by_utf16_code_units(a: String, b: String, prefix: String) {
        prop_assert_eq!(utf16_order(&a, &b), a.encode_utf16().cmp(b.encode_utf16()));
        let (a, b) = (format!("{prefix}{a}"), format!("{prefix}{b}"));
        prop_assert_eq!(utf16_order(&a, &b), a.encode_utf16().cmp(b.encode_utf16()));
    }

    #[test]
    fn pointers_find_what_they_were_made_for(names in prop::collection::vec(any::<String>(), 1..6)) {
        let mut pointer = String::new();
        let mut value = Json::Null;
        for name in names.iter().rev() {
            value = Json::object([(name.as_str(), value), ("kept\u{1}", true.into())].into_iter().take(1 + usize::from(name != "kept\u{1}")));
        }
        for name in &names {
            super::super::ignore::push_token(&mut pointer, name);
        }
        let ignore = Ignore::new([&pointer]).unwrap();
        let kept = canonical_without(&value, &ignore).unwrap();
        prop_assert!(!kept.contains("null"), "{pointer}: {kept}");
        prop_assert_ne!(kept, canonical(&value).unwrap());
    }
}

/// Orders differ only where both planes meet, which random strings seldom do.
#[test]
fn names_beyond_the_basic_plane_sort_before_private_use() {
    let characters =
        ['\0', 'a', '\u{7f}', '\u{80}', '\u{7ff}', '\u{800}', '\u{d7ff}', '\u{e000}', '\u{efff}', '\u{f000}'];
    let characters: Vec<char> =
        characters.into_iter().chain(['\u{ffff}', '\u{10000}', '\u{3ffff}', '\u{10ffff}']).collect();
    let mut names = vec![String::new()];
    for first in &characters {
        names.push(first.to_string());
        names.extend(characters.iter().map(|second| format!("{first}{second}")));
    }
    for a in &names {
        for b in &names {
            assert_eq!(utf16_order(a, b), a.encode_utf16().cmp(b.encode_utf16()), "{a:?} {b:?}");
        }
    }
}

/// A request of any bytes: it has a fingerprint or none, its canonical form is JSON, and writing it anew changes nothing.
#[test]
fn fuzz_fingerprint() {
    let good = [r#"{"amount":1.50,"to":["a","\u00e9"],"n":1e21}"#, "[0.1,-0,123456789012345678901234567890]", "null"];
    let words =
        &["{", "}", "[", "]", ",", "\"a\":", "1e308", "-0", "0.1", "\\ud83d\\ude00", "9007199254740993", "/a/0", "~1"];
    let good = good.map(|text| text.as_bytes().to_vec()).to_vec();
    crate::fuzz::Target { name: "fingerprint", good, words, cases: 4000 }.run(
        |_| {},
        |bytes| {
            let pointer = String::from_utf8_lossy(bytes).into_owned();
            let _ = Ignore::new([pointer.as_str()]);
            let Ok(found) = Fingerprint::json_text(bytes) else { return false };
            let value = Json::parse(bytes).expect("what has a fingerprint is JSON");
            let written = canonical(&value).expect("and has a canonical form");
            assert!(Json::parse(written.as_bytes()).is_ok(), "{written}");
            assert_eq!(Fingerprint::json_text(value.to_text()), Ok(found));
            true
        },
    );
}
