//! Keys: each rule by itself, and any bytes at all.

use proptest::prelude::*;

use super::*;
use crate::fuzz::Target;

fn key(value: &str) -> Result<String, KeyError> {
    parse(value.as_bytes()).map(|key| key.as_str().to_owned())
}

#[test]
fn quoted_and_bare_are_one_key() {
    for value in ["k-1", "\"k-1\"", " \t k-1\t", " \"k-1\" "] {
        assert_eq!(key(value).as_deref(), Ok("k-1"), "{value}");
    }
    assert_eq!(key(r#""a\"b\\c, d;e""#).as_deref(), Ok(r#"a"b\c, d;e"#));
    assert_eq!(key(r#"a"b\c"#).as_deref(), Ok(r#"a"b\c"#), "bare has no escapes");
    assert_eq!(key("two words").as_deref(), Ok("two words"));
}

#[test]
fn present_and_empty_is_invalid() {
    for value in ["", " ", "\t", "\"\"", " \"\" "] {
        assert_eq!(key(value), Err(KeyError::Empty), "{value:?}");
    }
}

#[test]
fn the_length_counts_decoded_bytes() {
    let (fits, long) = ("x".repeat(255), "x".repeat(256));
    assert!(key(&fits).is_ok() && key(&format!("\"{fits}\"")).is_ok());
    assert_eq!(key(&long), Err(KeyError::TooLong));
    assert_eq!(key(&format!("\"{long}\"")), Err(KeyError::TooLong));
    assert!(key(&format!("\"{}\"", "\\\\".repeat(255))).is_ok());
}

#[test]
fn lists_and_parameters_are_no_keys() {
    for value in ["a,b", "a, b", "a;b=1", ",", ";"] {
        assert_eq!(key(value), Err(KeyError::Separator), "{value}");
    }
    for value in ["\"a\", \"b\"", "\"a\";x=1", "\"a\"b", "\"a", "\"", "\"a\\\"", "\"a\\n\"", "\"\"\""] {
        assert_eq!(key(value), Err(KeyError::NotAString), "{value}");
    }
}

#[test]
fn keys_are_printable_ascii() {
    for value in ["é", "a\u{7f}", "a\tb", "\"a\tb\"", "\"é\""] {
        assert_eq!(key(value), Err(KeyError::NotPrintable), "{value:?}");
    }
}

fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
}

#[test]
fn lines_are_counted_over_all_names() {
    let names = ["idempotency-key", "x-idempotency-key"].map(HeaderName::from_static);
    let found = |lines: &[(&str, &str)]| find(&fields(lines), &names).map(|found| found.map(|(key, _)| key.0));
    assert_eq!(found(&[]), Ok(None));
    assert_eq!(found(&[("Idempotency-KEY", "a")]), Ok(Some("a".to_owned())));
    assert_eq!(found(&[("X-Idempotency-Key", "a")]), Ok(Some("a".to_owned())));
    assert_eq!(found(&[("idempotency-key", "a"), ("idempotency-key", "a")]), Err(KeyError::Several));
    assert_eq!(found(&[("idempotency-key", "a"), ("x-idempotency-key", "a")]), Err(KeyError::Several));
    assert_eq!(found(&[("idempotency-key", ""), ("idempotency-key", "a")]), Err(KeyError::Several));
    assert_eq!(find(&fields(&[("x-idempotency-key", "a")]), &names[..1]), Ok(None), "an alias must be named");
}

#[test]
fn a_key_is_shown_nowhere() {
    assert_eq!(format!("{:?}", parse(b"secret").unwrap()), "Key(6 bytes)");
}

/// As RFC 9651 writes a string.
fn quoted(key: &str) -> String {
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

#[test]
fn fuzz_key_header() {
    let good = ["abc", "\"abc\"", "\"a\\\"b\\\\c\"", "8e03978e-40d5-43e8-bc93-6894a57f9324"]
        .map(|text| text.as_bytes().to_vec());
    let target =
        Target { name: "key-header", good: good.to_vec(), words: &["\"", "\\", ";a=1", ", ", " "], cases: 4000 };
    target.run(
        |_| {},
        |bytes| {
            let Ok(found) = parse(bytes) else { return false };
            assert!((1..=limits::KEY_BYTES_MAX).contains(&found.0.len()));
            assert_eq!(parse(quoted(&found.0).as_bytes()), Ok(found));
            true
        },
    );
}

proptest! {
    #[test]
    fn every_key_survives_being_written_as_a_string(text in "[ -~]{1,255}") {
        prop_assert_eq!(key(&quoted(&text)), Ok(text));
    }

    #[test]
    fn bare_keys_are_themselves(text in "[!#-+\\--:<-~][ -+\\--:<-~]{0,253}[!-+\\--:<-~]") {
        prop_assert_eq!(key(&text), Ok(text.clone()));
        prop_assert_eq!(key(&quoted(&text)), Ok(text));
    }

    /// Whatever comes: no panic, and what is taken keeps the rule and says the same when it is written again.
    #[test]
    fn any_bytes_are_a_key_or_refused(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), Just(b'\\')], 0..300)) {
        if let Ok(found) = parse(&bytes) {
            prop_assert!((1..=limits::KEY_BYTES_MAX).contains(&found.0.len()));
            prop_assert!(found.0.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
            prop_assert_eq!(parse(quoted(&found.0).as_bytes()), Ok(found));
        }
    }
}
