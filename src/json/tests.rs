use super::*;

mod fields;
mod properties;

fn refused(text: impl AsRef<[u8]>) -> (Kind, usize) {
    let error = Json::parse(text.as_ref()).expect_err("the text is to be refused");
    (error.kind(), error.offset())
}

fn nested(open: &str, inner: &str, close: &str, depth: usize) -> String {
    format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
}

#[test]
fn a_document_becomes_a_tree() {
    let text = " { \"a\" : [ null , true,false ,-1.50E+2 ] ,\r\n\t\"\" : { } , \"s\":\"\\u0041\\/\\ud83d\\ude00é\" , \"e\":[ ] } ";
    let expected = Json::object([
        (
            "a",
            Json::Array(vec![Json::Null, true.into(), false.into(), Json::Number(Number::parse("-1.50E+2").unwrap())]),
        ),
        ("", Json::Object(vec![])),
        ("s", "A/😀é".into()),
        ("e", Json::Array(vec![])),
    ]);
    assert_eq!(Json::parse(text.as_bytes()), Ok(expected.clone()));
    assert_eq!(expected.to_text(), r#"{"a":[null,true,false,-1.50E+2],"":{},"s":"A/😀é","e":[]}"#);
    assert_eq!(Json::parse(expected.to_text().as_bytes()), Ok(expected));
}

#[test]
fn every_escape_is_read_and_the_fewest_are_written() {
    let text = r#""\"\\\/\b\f\n\r\t\u0000\u001F\u007f\u00e9\uD834\udd1e\uFFFF""#;
    let json = Json::parse(text.as_bytes()).unwrap();
    assert_eq!(json.as_str(), Some("\"\\/\u{8}\u{c}\n\r\t\0\u{1f}\u{7f}é𝄞\u{ffff}"));
    assert_eq!(json.to_text(), "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\u{7f}é𝄞\u{ffff}\"");
}

#[test]
fn numbers_keep_their_text() {
    let long = "9".repeat(100_000);
    for text in
        ["0", "-0", "0.0", "1e5", "1E+05", "1e-0", "10", "-12.340", "1234567890123456789012", "12345678901234567890123"]
    {
        assert_eq!(Json::parse(text.as_bytes()), Ok(Json::Number(Number::parse(text).unwrap())));
        assert_eq!(Json::parse(text.as_bytes()).unwrap().to_text(), text);
    }
    assert_eq!(Json::parse(long.as_bytes()).unwrap().to_text(), long);
    for bad in ["", "-", "+1", "01", "1.", ".5", "1e", "1e+", "0x1", "1 ", " 1", "--1", "1.e1", "1a", "Infinity", "1_0"]
    {
        assert_eq!(Number::parse(bad), None, "{bad}");
    }
    assert_eq!(Number::from(u64::MAX).as_str(), "18446744073709551615");
    assert_eq!(Number::from(i64::MIN).as_str(), "-9223372036854775808");
}

#[test]
fn what_is_not_one_document_is_refused_where_it_fails() {
    let cases: &[(&[u8], Kind, usize)] = &[
        (b"", Kind::Empty, 0),
        (b" \n", Kind::Empty, 2),
        (b"\xef\xbb\xbf1", Kind::ByteOrderMark, 0),
        (b"1\xef\xbb\xbf", Kind::TrailingText, 1),
        (b"[1] [2]", Kind::TrailingText, 4),
        (b"1,", Kind::TrailingText, 1),
        (b"{}}", Kind::TrailingText, 2),
        (b"null0", Kind::TrailingText, 4),
        (b"NaN", Kind::ValueExpected, 0),
        (b"-Infinity", Kind::MalformedNumber, 1),
        (b"nulL", Kind::ValueExpected, 0),
        (b"tru", Kind::UnexpectedEnd, 3),
        (b"'a'", Kind::ValueExpected, 0),
        (b"\x0c1", Kind::ValueExpected, 0),
        (b"\xc2\xa01", Kind::ValueExpected, 0),
        (b"/**/1", Kind::ValueExpected, 0),
        (b"[1,]", Kind::ValueExpected, 3),
        (b"[,1]", Kind::ValueExpected, 1),
        (b"[1 2]", Kind::ItemSeparatorExpected, 3),
        (b"[1", Kind::UnexpectedEnd, 2),
        (b"[", Kind::UnexpectedEnd, 1),
        (b"[1}", Kind::ItemSeparatorExpected, 2),
        (b"{\"a\":1,}", Kind::NameExpected, 7),
        (b"{a:1}", Kind::NameExpected, 1),
        (b"{\"a\" 1}", Kind::ColonExpected, 5),
        (b"{\"a\"", Kind::UnexpectedEnd, 4),
        (b"{\"a\":", Kind::UnexpectedEnd, 5),
        (b"{\"a\":1", Kind::UnexpectedEnd, 6),
        (b"{\"a\":1]", Kind::MemberSeparatorExpected, 6),
        (b"{", Kind::UnexpectedEnd, 1),
        (b"01", Kind::LeadingZero, 0),
        (b"[-01]", Kind::LeadingZero, 2),
        (b"1.", Kind::UnexpectedEnd, 2),
        (b"1.x", Kind::MalformedNumber, 2),
        (b"1e+", Kind::UnexpectedEnd, 3),
        (b"+1", Kind::ValueExpected, 0),
        (b"\"a\nb\"", Kind::ControlCharacter, 2),
        (b"\"12345678\x00\"", Kind::ControlCharacter, 9),
        (b"\"abc", Kind::UnexpectedEnd, 4),
        (b"\"abc\\", Kind::UnexpectedEnd, 5),
        (b"\"\\x41\"", Kind::InvalidEscape, 1),
        (b"\"\\u00g0\"", Kind::InvalidEscape, 1),
        (b"\"\\u+041\"", Kind::InvalidEscape, 1),
        (b"\"\\u00", Kind::UnexpectedEnd, 5),
        (b"\"\\ud800\"", Kind::LoneSurrogate, 1),
        (b"\"\\udc00\"", Kind::LoneSurrogate, 1),
        (b"\"\\ud800\\u0041\"", Kind::LoneSurrogate, 1),
        (b"\"\\ud800\\ud800\\udc00\"", Kind::LoneSurrogate, 1),
        (b"\"\\ud800\\ue000\"", Kind::LoneSurrogate, 1),
        (b"\"\\udbff\\udbff\"", Kind::LoneSurrogate, 1),
        (b"\"x\\ud800\\n\"", Kind::LoneSurrogate, 2),
        (b"{\"\\udc00\":1}", Kind::LoneSurrogate, 2),
        (b"\"\xff\"", Kind::InvalidUtf8, 1),
        (b"\"\xc0\x80\"", Kind::InvalidUtf8, 1),
        (b"\"\xed\xa0\x80\"", Kind::InvalidUtf8, 1),
        (b"[1,\"\xe2\x82", Kind::InvalidUtf8, 4),
        (b"\xff\xfe1\x00", Kind::InvalidUtf8, 0),
    ];
    for (text, kind, offset) in cases {
        assert_eq!(refused(text), (*kind, *offset), "{}", text.escape_ascii());
    }
}

#[test]
fn a_name_twice_is_refused_at_any_depth_and_size() {
    assert_eq!(refused(r#"{"a":1,"a":2}"#), (Kind::DuplicateMember, 7));
    assert_eq!(refused(r#"{"a":1,"\u0061":2}"#), (Kind::DuplicateMember, 7));
    assert_eq!(refused(r#"[{"x":{"y":1, "z":2 ,"y":3}}]"#), (Kind::DuplicateMember, 21));
    assert!(Json::parse("{\"\u{e9}\":1,\"e\u{301}\":2}".as_bytes()).is_ok());
    for size in [2, 15, 16, 17, 18, 100, 1000] {
        let names: Vec<String> = (0..size).map(|i| format!("\"n{}\":{{\"inner\":{i}}}", i * 7919 % 1000)).collect();
        assert!(Json::parse(format!("{{{}}}", names.join(",")).as_bytes()).is_ok(), "{size} names");
        for (first, second) in [(0, 1), (0, size - 1), (size / 2, size - 1)] {
            let mut twice = names.clone();
            twice[second] = twice[first].clone();
            let text = format!("[{{{}}}]", twice.join(","));
            let offset = 2 + twice[..second].iter().map(|name| name.len() + 1).sum::<usize>();
            if first != second {
                assert_eq!(refused(&text), (Kind::DuplicateMember, offset), "{size} names, {first} = {second}");
            }
        }
    }
}

#[test]
fn depth_ends_at_the_limit() {
    let max = limits::JSON_DEPTH_MAX;
    assert!(Json::parse(nested("[", "1", "]", max).as_bytes()).is_ok());
    assert_eq!(refused(nested("[", "", "]", max + 1)), (Kind::TooDeep, max));
    assert!(Json::parse(nested("{\"a\":", "1", "}", max).as_bytes()).is_ok());
    assert_eq!(refused(nested("{\"a\":", "1", "}", max + 1)).0, Kind::TooDeep);
    let wide = format!("[{},{}]", nested("[", "", "]", max - 1), nested("[", "", "]", max - 1));
    assert!(Json::parse(wide.as_bytes()).is_ok());
    let envelope = max + limits::JSON_ENVELOPE_DEPTH;
    assert!(Json::parse_envelope(nested("[", "", "]", envelope).as_bytes()).is_ok());
    assert!(Json::parse_envelope(nested("[", "", "]", envelope + 1).as_bytes()).is_err());
    assert_eq!(refused("[".repeat(4 << 20)), (Kind::TooDeep, max));
}

#[test]
fn an_error_says_where_and_nothing_of_what() {
    let error = Json::parse(br#"{"secret":1,"card":[{"number":"4242","cvc":[0,12x]}]}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "byte 48, at $.member(1)[0].member(1): a comma or a closing bracket is expected after the item"
    );
    let steps: Vec<Step> = error.location().steps().collect();
    assert_eq!(steps, [Step::Member(1), Step::Item(0), Step::Member(1)]);
    let shown = format!("{error:?} {error}");
    assert!(!["secret", "card", "number", "4242", "cvc", "12x"].iter().any(|content| shown.contains(content)));
    let error = Json::parse(br#"[[0,{"a":1,"b":2,"a":3}]]"#).unwrap_err();
    assert_eq!(error.location().to_string(), "$[0][1].member(2)");
}

/// The longest body of each kind takes well under a second alone on a machine; where work grows with the square of the
/// length, it takes many minutes. The bound is far from both, so that a busy machine doesn't fail it.
#[test]
fn hostile_texts_take_linear_time() {
    let length = limits::REQUEST_BYTES_MAX;
    let members = |n: usize| (0..n).map(|i| format!("\"n{i:06}\":0")).collect::<Vec<_>>().join(",");
    let texts = [
        format!("{{{}}}", members(length / 12)),
        format!("[0{}]", ",0".repeat(length / 2 - 2)),
        "7".repeat(length),
        format!("1e{}", "7".repeat(length - 2)),
        format!("\"{}\"", "\\n".repeat(length / 2 - 1)),
        format!("[{{}}{}]", ",{\"a\":{}}".repeat(length / 9 - 1)),
        format!("{}1", " ".repeat(length - 1)),
        format!("{}\"{}", "[".repeat(20), "a".repeat(length - 21)),
    ];
    for text in texts {
        assert!(text.len() <= length);
        let begun = std::time::Instant::now();
        std::hint::black_box(Json::parse(text.as_bytes())).ok();
        assert!(begun.elapsed().as_secs() < 30, "{}…: {:?}", &text[..30], begun.elapsed());
    }
}
