//! Properties of the parser over random values, random mutations of their texts, and random bytes.

use proptest::prelude::*;

use super::*;

/// SplitMix64: random choices from a seed that a failing case names.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).expect("31 bits fit") % sides
    }
}

fn value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?"
            .prop_map(|text| Json::Number(Number::parse(&text).unwrap())),
        any::<String>().prop_map(Json::String),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::Array),
            prop::collection::btree_map(any::<String>(), inner, 0..6).prop_map(Json::object),
        ]
    })
}

/// Bytes that JSON is made of, and some that break it.
const PIECES: [&[u8]; 36] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u00",
    b"\\ud83d",
    b"\\ude00",
    b"\\u0061",
    b"0",
    b"1",
    b"9",
    b"-",
    b"+",
    b".",
    b"e",
    b"E5",
    b"null",
    b"true",
    b"false",
    b" ",
    b"\n",
    b"\x00",
    b"\x1f",
    b"\x7f",
    b"\xc3\xa9",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\xef\xbb\xbf",
    b"\"a\":",
    b"\"a\"",
    b"1e400",
];

/// Breaks a text, or not: bytes inserted, removed, repeated, cut off.
fn mutate(text: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..dice.roll(4) {
        let at = dice.roll(text.len() + 1);
        match dice.roll(5) {
            0 | 1 => drop(text.splice(at..at, PIECES[dice.roll(PIECES.len())].iter().copied())),
            2 if at < text.len() => drop(text.remove(at)),
            3 => {
                let end = (at + dice.roll(8)).min(text.len());
                let piece = text[at..end].to_vec();
                drop(text.splice(at..at, piece));
            }
            _ => text.truncate(at),
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(value in value()) {
        let text = value.to_text();
        prop_assert_eq!(Json::parse(text.as_bytes()), Ok(value));
    }

    #[test]
    fn number_text_is_kept(text in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,30})?") {
        let number = Number::parse(&text);
        prop_assert_eq!(number.as_ref().map(Number::as_str), Some(text.as_str()));
    }
}

/// Another parser, where its rules and these are the same: serde_json takes a member twice, and when it skips a value
/// also lone surrogates; it allows twice the depth.
#[cfg(feature = "server")]
fn agrees_with_serde_json(bytes: &[u8]) -> Result<(), TestCaseError> {
    let text = std::str::from_utf8(bytes);
    let accepted = text.is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
    match Json::parse(bytes) {
        Ok(json) => {
            prop_assert!(accepted, "{}", bytes.escape_ascii());
            let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
            prop_assert_eq!(read(bytes), read(json.to_text().as_bytes()));
        }
        Err(error) => {
            let ours = matches!(error.kind(), Kind::DuplicateMember | Kind::LoneSurrogate | Kind::TooDeep);
            prop_assert!(ours || !accepted, "{error}: {}", bytes.escape_ascii());
            prop_assert!(error.offset() <= bytes.len());
        }
    }
    Ok(())
}

#[cfg(feature = "server")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_texts_are_judged_like_serde_json_judges_them(value in value(), seed: u64) {
        let mut text = value.to_text().into_bytes();
        mutate(&mut text, &mut Dice(seed));
        agrees_with_serde_json(&text)?;
    }
}

#[cfg(feature = "server")]
#[test]
fn random_pieces_are_judged_like_serde_json_judges_them() {
    let mut dice = Dice(1);
    let mut accepted = 0;
    for _ in 0..100_000 {
        let pieces = 1 + dice.roll(7);
        let text: Vec<u8> = (0..pieces).flat_map(|_| PIECES[dice.roll(PIECES.len())]).copied().collect();
        accepted += u32::from(Json::parse(&text).is_ok());
        agrees_with_serde_json(&text).unwrap();
    }
    assert!(accepted > 1000, "only {accepted} texts were JSON, which tests little");
}

#[test]
fn no_bytes_panic() {
    let mut dice = Dice(2);
    for _ in 0..100_000 {
        let length = dice.roll(40);
        let bytes: Vec<u8> = (0..length).map(|_| u8::try_from(dice.roll(256)).expect("256 sides fit")).collect();
        Json::parse(&bytes).ok();
    }
    let sample = include_bytes!("../../../tests/vectors/fingerprint-v1.json");
    for _ in 0..20_000 {
        let start = dice.roll(sample.len());
        let mut text = sample[start..(start + dice.roll(80)).min(sample.len())].to_vec();
        mutate(&mut text, &mut dice);
        if let Ok(json) = Json::parse(&text) {
            assert_eq!(Json::parse(json.to_text().as_bytes()), Ok(json.clone()));
            crate::fingerprint::canonical(&json).ok();
            Fields::new(json).and_then(Fields::finish).ok();
        }
    }
}

/// JSON of all kinds: judged as another parser judges it, and written back as it was.
#[test]
fn fuzz_json() {
    let good = [r#"{"a":[1,-2.5e3,"x\u00e9\n",null,true],"b":{"c":{}}}"#, "[[[[]]]]", "\"\"", "0"];
    let words = &["{", "}", "[", "]", ",", ":", "\"", "\\u0061", "\\ud83d", "\\ude00", "-", "1e", "null", "\"a\":"];
    let good = good.map(|text| text.as_bytes().to_vec()).to_vec();
    crate::fuzz::Target { name: "json", good, words, cases: 5000 }.run(
        |_| {},
        |bytes| {
            agrees_with_serde_json(bytes).unwrap();
            let _ = Json::parse_envelope(bytes);
            let Ok(json) = Json::parse(bytes) else { return false };
            assert_eq!(Json::parse(json.to_text().as_bytes()), Ok(json.clone()));
            Fields::new(json).and_then(Fields::finish).ok();
            true
        },
    );
}
