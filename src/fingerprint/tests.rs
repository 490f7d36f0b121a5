use super::*;
use crate::json::{Kind, Number};

const VECTORS: &str = include_str!("../../tests/vectors/fingerprint-v1.json");

mod properties;
mod vectors;

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).expect("the test's text is JSON")
}

fn canonical_text(text: &str) -> Result<String, Error> {
    canonical(&Json::parse(text.as_bytes())?)
}

fn without(text: &str, pointers: &[&str]) -> String {
    canonical_without(&json(text), &Ignore::new(pointers).unwrap()).unwrap()
}

#[test]
fn exponents_cost_no_more_than_their_text() {
    assert_eq!(canonical_text("0e999999999999999999999"), Ok("0".into()));
    assert_eq!(canonical_text("-0.000e-999999999999999999999"), Ok("0".into()));
    assert_eq!(canonical_text("1e1000000000"), Err(Error::IntegerTooLong));
    assert_eq!(canonical_text("-1.5e99999999999999999999999999"), Err(Error::IntegerTooLong));
    assert_eq!(canonical_text("1e-1000000000"), Ok("0".into()));
    assert_eq!(canonical_text("-1e-99999999999999999999999999"), Ok("0".into()));
    // Around the width of the integer that holds the exponent.
    for exponent in (15..45).flat_map(|zeros| (1..10).map(move |digit| format!("{digit}{}", "0".repeat(zeros)))) {
        assert_eq!(canonical_text(&format!("1.5e{exponent}")), Err(Error::IntegerTooLong), "{exponent}");
        assert_eq!(canonical_text(&format!("1.5e-{exponent}")), Ok("0".into()), "{exponent}");
    }
    let digits = "9".repeat(1_000_000);
    assert_eq!(canonical_text(&format!("1e{digits}")), Err(Error::IntegerTooLong));
    assert_eq!(canonical_text(&format!("1e-{digits}")), Ok("0".into()));
    assert_eq!(canonical_text(&digits), Err(Error::IntegerTooLong));
    assert_eq!(canonical_text(&format!("0.{digits}")), Ok("1".into()));
}

#[test]
fn an_exponent_and_zeros_cancel_exactly() {
    let zeros = "0".repeat(700_000);
    assert_eq!(canonical_text(&format!("0.{zeros}15e700001")), Ok("1.5".into()));
    assert_eq!(canonical_text(&format!("0.{zeros}15e700002")), Ok("15".into()));
    assert_eq!(canonical_text(&format!("15{zeros}e-700001")), Ok("1.5".into()));
    assert_eq!(canonical_text(&format!("15{zeros}.0e-700000")), Ok("15".into()));
}

#[test]
fn integers_end_at_1024_digits() {
    let longest = "7".repeat(1024);
    assert_eq!(canonical_text(&longest), Ok(longest.clone()));
    assert_eq!(canonical_text(&format!("-{longest}")), Ok(format!("-{longest}")));
    assert_eq!(canonical_text(&format!("{longest}.000")), Ok(longest.clone()));
    assert_eq!(canonical_text(&format!("{longest}7")), Err(Error::IntegerTooLong));
    assert_eq!(canonical_text("1e1023"), Ok(format!("1{}", "0".repeat(1023))));
    assert_eq!(canonical_text("10e1023"), Err(Error::IntegerTooLong));
    assert_eq!(canonical_text("0.1e1024"), Ok(format!("1{}", "0".repeat(1023))));
}

#[test]
fn fractions_are_the_nearest_double() {
    let cases = [
        ("0.5", "0.5"),
        ("-4.50e0", "-4.5"),
        ("123456789.123456789", "123456789.12345679"),
        ("1000000000000000000000.5", "1e+21"),
        ("9007199254740992.5", "9007199254740992"),
        ("9007199254740993.5", "9007199254740994"),
        ("1.7976931348623157081e1", "17.976931348623157"),
        ("2.2250738585072011e-308", "2.225073858507201e-308"),
        ("2e-324", "0"),
        ("3e-324", "5e-324"),
        ("-3e-324", "-5e-324"),
        ("-2e-324", "0"),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical_text(text).as_deref(), Ok(expected), "{text}");
    }
    // The greatest double, and the half way from it to the next power of two, where rounding turns to infinity.
    let greatest = format!("{:.0}.5", f64::MAX);
    assert_eq!(canonical_text(&greatest).as_deref(), Ok("1.7976931348623157e+308"));
    assert_eq!(canonical_text(&format!("2{}.5", "0".repeat(308))), Err(Error::BeyondDouble));
    // Half way between two doubles rounds to even, unless a digit far behind says otherwise.
    let half = "1.00000000000000011102230246251565404236316680908203125";
    assert_eq!(canonical_text(half).as_deref(), Ok("1"));
    let above = format!("{half}{}1", "0".repeat(5000));
    assert_eq!(canonical_text(&above).as_deref(), Ok("1.0000000000000002"));
}

#[test]
fn ignored_parts_are_removed_at_once() {
    let text = r#"{"a":[1,2,3],"ts":5,"b":{"x/y":1,"m~n":2,"01":3,"-":4}}"#;
    assert_eq!(without(text, &[]), r#"{"a":[1,2,3],"b":{"-":4,"01":3,"m~n":2,"x/y":1},"ts":5}"#);
    assert_eq!(without(text, &["/ts", "/b"]), r#"{"a":[1,2,3]}"#);
    assert_eq!(without(text, &["/a/0", "/a/1", "/ts", "/b"]), r#"{"a":[3]}"#);
    assert_eq!(without(text, &["/a/1", "/a/0", "/ts", "/b"]), r#"{"a":[3]}"#);
    assert_eq!(without(text, &["/b/x~1y", "/b/m~0n", "/b/01", "/b/-", "/a", "/ts"]), r#"{"b":{}}"#);
    assert_eq!(
        without(text, &["/a/00", "/a/-", "/a/3", "/a/01", "/nothing/here", "/ts/x", "/b"]),
        r#"{"a":[1,2,3],"ts":5}"#
    );
    assert_eq!(without(text, &["/b", "/b/x~1y", "/ts", "/ts", "/a/+1"]), r#"{"a":[1,2,3]}"#);
    assert_eq!(without(r#"{"":1,"a":{"":2}}"#, &["/"]), r#"{"a":{"":2}}"#);
    assert_eq!(without(r#"{"":1,"a":{"":2}}"#, &["/a/"]), r#"{"":1,"a":{}}"#);
    assert_eq!(without(r#"{"~1":1,"/":2}"#, &["/~01"]), r#"{"/":2}"#);
    assert_eq!(without(r#"{"x":1e5000,"y":1}"#, &["/x"]), r#"{"y":1}"#);
    assert_eq!(without("7", &["/x"]), "7");
}

#[test]
fn pointers_are_checked() {
    assert_eq!(Ignore::new([""]), Err(Error::WholeRequest { index: 0 }));
    assert_eq!(Ignore::new(["/a", "a"]), Err(Error::InvalidPointer { index: 1 }));
    for bad in ["#/a", "/~", "/~2", "/a~", "/~/a", " /a", "/é~é"] {
        assert_eq!(Ignore::new([bad]), Err(Error::InvalidPointer { index: 0 }), "{bad}");
    }
    let sixteen: Vec<String> = (0..16).map(|i| format!("/{i}")).collect();
    assert!(Ignore::new(&sixteen).is_ok());
    assert_eq!(Ignore::new(sixteen.iter().map(String::as_str).chain(["/16"])), Err(Error::TooManyPointers));
}

#[test]
fn depth_counts_in_every_part() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(Fingerprint::json_text(nested(64)).is_ok());
    let Err(Error::Json(error)) = Fingerprint::json_text(nested(65)) else { panic!("65 levels are refused") };
    assert_eq!(error.kind(), Kind::TooDeep);
    let envelope = Json::parse_envelope(nested(66).as_bytes()).unwrap();
    assert_eq!(canonical(&envelope), Err(Error::TooDeep));
    let ignored = Json::object([("x", Json::parse(nested(64).as_bytes()).unwrap())]);
    assert_eq!(canonical_without(&ignored, &Ignore::new(["/x"]).unwrap()), Err(Error::TooDeep));
}

#[test]
fn a_hand_built_duplicate_is_refused() {
    let twice = Json::object([("a", Json::Null), ("b", Json::Null), ("a", Json::Bool(true))]);
    assert_eq!(canonical(&twice), Err(Error::DuplicateMember));
}

#[test]
fn digests_come_and_go_as_hex() {
    let fingerprint = Fingerprint::raw(b"x");
    assert_eq!(Fingerprint::from_hex(1, &fingerprint.hex()), Ok(fingerprint));
    assert_ne!(Fingerprint::from_hex(2, &fingerprint.hex()), Ok(fingerprint));
    for bad in ["", "0", &"0".repeat(63), &"0".repeat(65), &"A".repeat(64), &"g".repeat(64), &"é".repeat(32)] {
        assert_eq!(Fingerprint::from_hex(1, bad), Err(Error::InvalidDigest), "{bad}");
    }
    assert_eq!(format!("{fingerprint:?}"), format!("Fingerprint(1:{})", fingerprint.hex()));
}

#[test]
fn forms_never_meet() {
    let same = br#"{"a":1}"#;
    assert_ne!(Fingerprint::json_text(same).unwrap(), Fingerprint::raw(same));
    let request = HttpRequest::new("POST", "/");
    let as_json = Fingerprint::http(&request, &Body::json(&json(r#"{"a":1}"#)).unwrap());
    assert_ne!(as_json, Fingerprint::http(&request, &Body::raw(same)));
    let digest = [7; 32];
    let letters = [Form::Json, Form::Raw, Form::Multipart, Form::Http];
    let http: Vec<_> = letters.map(|form| Fingerprint::http(&request, &Body::new(form, digest))).to_vec();
    assert!((1..4).all(|i| !http[..i].contains(&http[i])));
}

#[test]
fn neighbouring_values_never_run_into_each_other() {
    let body = Body::raw(b"");
    let of = |request: HttpRequest<'_>| Fingerprint::http(&request, &body);
    let none: [&str; 0] = [];
    let requests = [
        of(HttpRequest::new("POST", "/a").query("b")),
        of(HttpRequest::new("POST", "/ab").query("")),
        of(HttpRequest::new("POST", "/ab")),
        of(HttpRequest::new("POST/", "ab")),
        of(HttpRequest::new("POST", "/ab").header("x", none)),
        of(HttpRequest::new("POST", "/ab").header("x", [""])),
        of(HttpRequest::new("POST", "/ab").header("x", ["1", "2"])),
        of(HttpRequest::new("POST", "/ab").header("x", ["1"]).header("y", none)),
        of(HttpRequest::new("POST", "/ab").header("y", none).header("x", ["1"])),
    ];
    assert!((1..requests.len()).all(|i| !requests[..i].contains(&requests[i])));
    assert_eq!(requests[6], of(HttpRequest::new("POST", "/ab").header("X", ["1, 2"])));
    let part = Part::new(b"1");
    let parts = [
        Fingerprint::multipart(&[]),
        Fingerprint::multipart(&[part]),
        Fingerprint::multipart(&[part, part]),
        Fingerprint::multipart(&[part.name("a")]),
        Fingerprint::multipart(&[part.filename("a")]),
        Fingerprint::multipart(&[part.content_type("a")]),
        Fingerprint::multipart(&[part.name("")]),
    ];
    assert!((1..parts.len()).all(|i| !parts[..i].contains(&parts[i])));
}

fn found(first: &str, second: &str, ignore: &[&str]) -> Vec<String> {
    let found = differences(&json(first), &json(second), &Ignore::new(ignore).unwrap()).unwrap();
    assert!(!found.more);
    let places = found.places.into_iter().map(|place| match place.kind {
        DifferenceKind::Changed => format!("≠{}", place.pointer),
        DifferenceKind::OnlyInFirst => format!("1{}", place.pointer),
        DifferenceKind::OnlyInSecond => format!("2{}", place.pointer),
    });
    places.collect()
}

#[test]
fn differences_are_named_by_pointer() {
    let first = r#"{"amount":100,"lines":[{"sku":"x","qty":1},{"sku":"y"}],"ts":1,"a/b":{"m~n":1}}"#;
    let second = r#"{"ts":2,"lines":[{"qty":1.0,"sku":"x"},{"sku":"z"},3],"amount":1e2,"a/b":{"m~n":[]},"new":null}"#;
    assert_eq!(found(first, first, &[]), [""; 0]);
    assert_eq!(found(first, second, &[]), ["≠/a~1b/m~0n", "≠/lines/1/sku", "2/lines/2", "2/new", "≠/ts"]);
    assert_eq!(found(second, first, &[]), ["≠/a~1b/m~0n", "≠/lines/1/sku", "1/lines/2", "1/new", "≠/ts"]);
    assert_eq!(found(first, second, &["/lines", "/ts", "/new", "/a~1b"]), [""; 0]);
    assert_eq!(found("1", "\"1\"", &[]), ["≠"]);
    assert_eq!(found("[]", "{}", &[]), ["≠"]);
    assert_eq!(found("[1,2]", "[9]", &["/0"]), ["1/1"]);
    assert_eq!(found("0.1", "0.10000000000000000000000001", &[]), [""; 0]);
}

#[test]
fn differences_are_bounded() {
    let many = |value: u32| Json::Array(vec![Json::from(value); 5000]);
    let all = differences(&many(1), &many(2), &Ignore::default()).unwrap();
    assert_eq!((all.places.len(), all.more), (limits::FINGERPRINT_DIFFERENCES_MAX, true));
    let few = differences(&Json::Array(vec![]), &Json::Array(vec![Json::Null; 1000]), &Ignore::default()).unwrap();
    assert_eq!((few.places.len(), few.more), (1000, false));
    let refused = differences(&json("1"), &json("1e5000"), &Ignore::default());
    assert_eq!(refused, Err(Error::IntegerTooLong));
}

#[test]
fn worked_examples_hash_to_their_digests() {
    let format = include_str!("FORMAT.md");
    let blocks = format.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let examples: Vec<(Vec<u8>, &str)> = blocks
        .filter_map(|block| block.split_once("\ndigest "))
        .map(|(bytes, digest)| (unhex(&bytes.replace([' ', '\n'], "")), digest.trim()))
        .collect();
    let value = json(r#"{ "a" : 2 , "b" : 1.0 }"#);
    let none: [&str; 0] = [];
    let request = HttpRequest::new("POST", "/orders").header("X-Session-Id", ["s1"]).header("X-Absent", none);
    let computed = [
        Fingerprint::json(&value).unwrap(),
        Fingerprint::multipart(&[Part::new(b"hello").name("file").filename("a.txt").content_type("text/plain")]),
        Fingerprint::http(&request, &Body::json(&value).unwrap()),
    ];
    assert_eq!(examples.len(), computed.len());
    for ((bytes, digest), fingerprint) in examples.iter().zip(computed) {
        assert_eq!(fingerprint.hex(), *digest);
        use sha2::Digest as _;
        let hashed: [u8; 32] = sha2::Sha256::digest(bytes).into();
        assert_eq!(fingerprint.digest(), &hashed);
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().map(|digit| hex_digit(digit).expect("the test's hex is hex")).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
