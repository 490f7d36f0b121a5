use super::*;

fn fields(text: &str) -> Fields {
    Fields::new(Json::parse(text.as_bytes()).unwrap()).unwrap()
}

fn message<T: std::fmt::Debug>(result: Result<T, FieldError>) -> String {
    result.expect_err("the field is to be refused").to_string()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum OnLapse {
    Hold,
    Retake,
}

const WORDS: [(&str, OnLapse); 2] = [("hold", OnLapse::Hold), ("retake", OnLapse::Retake)];

#[test]
fn a_whole_body_is_read() {
    let mut body = fields(
        r#"{"record":{"tenant":null,"operation":"o","key":"k"},"fence":"18446744073709551615","lease_ms":4294967295,
        "staged":true,"on_lapse":"retake","labels":{"b":"","a":"1"},"data":"AP8=","status":-5,
        "items":[{"kind":"x"}],"ignore":["/a"],"request":null,"wait_ms":null}"#,
    );
    let mut record = body.object("record").unwrap();
    assert_eq!(record.opt_string("tenant").unwrap(), None);
    assert_eq!((record.string("operation").unwrap(), record.string("key").unwrap()), ("o".into(), "k".into()));
    record.finish().unwrap();
    assert_eq!(body.u64_text("fence").unwrap(), u64::MAX);
    assert_eq!(body.u32("lease_ms").unwrap(), u32::MAX);
    assert_eq!(body.opt_u32("wait_ms").unwrap(), None);
    assert_eq!(body.opt_bool("staged").unwrap(), Some(true));
    assert_eq!(body.opt_word("on_lapse", &WORDS).unwrap(), Some(OnLapse::Retake));
    let labels = body.opt_strings("labels").unwrap().unwrap();
    assert_eq!(labels, [("b".into(), String::new()), ("a".into(), "1".into())]);
    assert_eq!(body.opt_bytes("data").unwrap(), Some(vec![0, 255]));
    assert_eq!(body.i32("status").unwrap(), -5);
    let mut items = body.opt_objects("items").unwrap().unwrap();
    assert_eq!(items[0].string("kind").unwrap(), "x");
    assert_eq!(items[0].path_of("y"), "items[0].y");
    assert_eq!(body.opt_array("ignore").unwrap(), Some(vec!["/a".into()]));
    assert_eq!(body.opt_value("request"), Some(Json::Null));
    assert_eq!(body.opt_value("request"), None);
    assert_eq!(body.opt_value("absent"), None);
    body.finish().unwrap();
}

#[test]
fn a_refusal_says_the_path_and_what_is_required() {
    let mut body = fields(r#"{"record":{"key":7,"operation":""},"items":[{},5],"o":[]}"#);
    assert_eq!(message(body.string("fence")), "fence: a string is required");
    assert_eq!(message(body.object("o")), "o: an object is required, not an array");
    assert_eq!(message(body.object("nowhere")), "nowhere: an object is required");
    let mut record = body.object("record").unwrap();
    assert_eq!(message(record.string("key")), "record.key: a string is required, not a number");
    assert_eq!(message(record.string("operation")), "record.operation: a string is required, not an empty one");
    assert_eq!(message(body.opt_objects("items")), "items[1]: an object is required, not a number");
    assert_eq!(message(Fields::new(Json::Array(vec![]))), "the body: an object is required, not an array");
    assert_eq!(message(Fields::new(Json::Null)), "the body: an object is required");
    let mut body = fields(r#"{"on_lapse":"keep","labels":{"a":1},"staged":"true"}"#);
    assert_eq!(
        message(body.opt_word("on_lapse", &WORDS)),
        r#"on_lapse: one of "hold", "retake" is required, not that string"#
    );
    assert_eq!(message(body.opt_strings("labels")), "labels: an object of strings is required, not a number");
    assert_eq!(message(body.opt_bool("staged")), "staged: true or false is required, not a string");
}

#[test]
fn integers_are_written_as_integers() {
    for good in [("0", 0), ("4294967295", u32::MAX)] {
        assert_eq!(fields(&format!(r#"{{"n":{}}}"#, good.0)).u32("n"), Ok(good.1));
    }
    for bad in ["-1", "-0", "1.0", "1e2", "\"1\"", "4294967296", "0.5", "true", "[]", "99999999999999999999999999"] {
        assert!(fields(&format!(r#"{{"n":{bad}}}"#)).u32("n").is_err(), "{bad}");
    }
    for bad in ["2147483648", "-2147483649", "1.0", "1e2", "\"1\""] {
        assert!(fields(&format!(r#"{{"n":{bad}}}"#)).i32("n").is_err(), "{bad}");
    }
    assert_eq!(fields(r#"{"n":-2147483648}"#).i32("n"), Ok(i32::MIN));
    assert_eq!(
        message(fields(r#"{"n":1.5}"#).u32("n")),
        "n: an integer from 0 to 4294967295, without sign, fraction, exponent or quotes, is required, not that number"
    );
}

#[test]
fn wide_numbers_are_decimal_strings() {
    for good in ["0", "1", "42", "18446744073709551615"] {
        assert_eq!(fields(&format!(r#"{{"n":"{good}"}}"#)).u64_text("n").unwrap().to_string(), good);
    }
    for bad in [
        "42",
        "\"\"",
        "\"00\"",
        "\"01\"",
        "\"+1\"",
        "\"-1\"",
        "\" 1\"",
        "\"1.0\"",
        "\"1e2\"",
        "\"0x1\"",
        "\"18446744073709551616\"",
        "\"١\"",
    ] {
        assert!(fields(&format!(r#"{{"n":{bad}}}"#)).u64_text("n").is_err(), "{bad}");
    }
    assert_eq!(
        message(fields(r#"{"n":42}"#).u64_text("n")),
        "n: a decimal number in quotes, like \"42\", from 0 to 18446744073709551615, without sign or leading zero, \
         is required, not a number"
    );
}

#[test]
fn base64_has_one_spelling() {
    for (good, bytes) in [("", vec![]), ("YQ==", b"a".to_vec()), ("+/+/", vec![0xfb, 0xff, 0xbf])] {
        assert_eq!(fields(&format!(r#"{{"b":"{good}"}}"#)).opt_bytes("b"), Ok(Some(bytes)));
    }
    for bad in ["YQ", "YQ=", "YR==", "-_-_", "YQ==\\n", " YQ==", "Y", "YQ===", "YQ==YQ=="] {
        assert!(fields(&format!(r#"{{"b":"{bad}"}}"#)).opt_bytes("b").is_err(), "{bad}");
    }
}

#[test]
fn the_first_unknown_field_is_named() {
    let read = |text: &str| {
        let mut body = fields(text);
        body.opt_u32("lease_ms").ok();
        body.opt_value("fence");
        body.opt_value("key");
        message(body.finish())
    };
    assert_eq!(read(r#"{"fence":1,"colour":1,"other":2}"#), "colour: unknown field; remove it");
    assert_eq!(read(r#"{"fense":1}"#), "fense: unknown field; did you mean fence?");
    assert_eq!(read(r#"{"leaseMs":1}"#), "leaseMs: unknown field; did you mean lease_ms?");
    assert_eq!(read(r#"{"abc":1}"#), "abc: unknown field; remove it");
    assert_eq!(read(r#"{"a b\u0000":1}"#), "(a name that isn't shown): unknown field; remove it");
    assert_eq!(
        read(&format!(r#"{{"{}":1}}"#, "x".repeat(5000))),
        "(a name that isn't shown): unknown field; remove it"
    );
    let mut body = fields(r#"{"record":{"keys":1}}"#);
    let mut record = body.object("record").unwrap();
    record.opt_string("key").unwrap();
    assert_eq!(message(record.finish()), "record.keys: unknown field; did you mean key?");
    // An unknown null is unknown too: a misspelt field must not pass because it is empty.
    assert_eq!(read(r#"{"colour":null}"#), "colour: unknown field; remove it");
}

#[test]
fn the_rest_can_be_taken_whole() {
    let mut item = fields(r#"{"id":1,"claim":{},"get":null}"#);
    item.opt_u32("id").unwrap();
    let rest = item.into_rest();
    assert_eq!(rest, [("claim".to_owned(), Json::Object(vec![])), ("get".to_owned(), Json::Null)]);
}

#[test]
fn more_members_than_fields_are_refused() {
    let object = |size: u32| Json::object((0..size).map(|i| (format!("n{i}"), Json::Null)));
    let mut full = Fields::new(object(64)).unwrap();
    assert_eq!(full.opt_value("n63"), Some(Json::Null));
    let rest: Vec<String> = full.into_rest().into_iter().map(|(name, _)| name).collect();
    assert_eq!(rest, (0..63).map(|i| format!("n{i}")).collect::<Vec<_>>());
    assert_eq!(message(Fields::new(object(65))), "the body: more than 64 members; send only the documented fields");
}
