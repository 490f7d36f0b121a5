//! The published vectors of scheme 1: every one, canonical text and digest.

use super::*;

/// The list `name` of the vector file, which must not be empty: a misspelt name would test nothing.
fn list(name: &str) -> Vec<Json> {
    let file = Json::parse(VECTORS.as_bytes()).expect("the vectors are JSON");
    let Some(Json::Array(items)) = file.member(name) else { panic!("no list {name}") };
    assert!(!items.is_empty());
    items.clone()
}

fn text<'a>(vector: &'a Json, name: &str) -> &'a str {
    vector.member(name).and_then(Json::as_str).expect("the vector has this text")
}

#[test]
fn json_vectors() {
    for vector in list("json") {
        let source = text(&vector, "text");
        assert_eq!(canonical_text(source).as_deref(), Ok(text(&vector, "canonical")), "{source}");
        assert_eq!(Fingerprint::json_text(source).unwrap().hex(), text(&vector, "digest"), "{source}");
        // A canonical text is its own canonical text.
        assert_eq!(Fingerprint::json_text(text(&vector, "canonical")).unwrap().hex(), text(&vector, "digest"));
    }
}

#[test]
fn refused_vectors() {
    for vector in list("json_refused") {
        let source = vector.as_str().expect("a refused vector is a text");
        assert!(Fingerprint::json_text(source).is_err(), "{source}");
    }
}

#[test]
fn raw_vectors() {
    for vector in list("raw") {
        assert_eq!(Fingerprint::raw(&unhex(text(&vector, "hex"))).hex(), text(&vector, "digest"));
    }
}

#[test]
fn multipart_vectors() {
    for vector in list("multipart") {
        let Some(Json::Array(parts)) = vector.member("parts") else { panic!("no parts") };
        let parts = parts.iter().map(|part| {
            let optional = |name| part.member(name).and_then(Json::as_str);
            let mut built = Part::new(&unhex(text(part, "hex")));
            built = optional("name").map_or(built, |name| built.name(name));
            built = optional("filename").map_or(built, |filename| built.filename(filename));
            optional("content_type").map_or(built, |content_type| built.content_type(content_type))
        });
        let parts: Vec<Part<'_>> = parts.collect();
        assert_eq!(Fingerprint::multipart(&parts).hex(), text(&vector, "digest"));
    }
}

#[test]
fn http_vectors() {
    for vector in list("http") {
        let mut request = HttpRequest::new(text(&vector, "method"), text(&vector, "path"));
        if let Some(query) = vector.member("query").and_then(Json::as_str) {
            request = request.query(query);
        }
        let Some(Json::Array(headers)) = vector.member("headers") else { panic!("no headers") };
        for header in headers {
            let Json::Array(pair) = header else { panic!("a header is a pair") };
            request = request.header(pair[0].as_str().unwrap(), pair[1].as_str());
        }
        let form = match text(&vector, "form") {
            "j" => Form::Json,
            "r" => Form::Raw,
            other => panic!("a form of no vector so far: {other}"),
        };
        let digest = unhex(text(&vector, "body_digest")).try_into().expect("a digest has 32 bytes");
        assert_eq!(Fingerprint::http(&request, &Body::new(form, digest)).hex(), text(&vector, "digest"));
    }
}

#[test]
fn numbers_of_all_lengths_round_trip() {
    for length in 1..60 {
        let digits = "1234567890".repeat(6)[..length].to_owned();
        assert_eq!(Number::parse(&digits).unwrap().as_str(), digits);
        assert_eq!(canonical_text(&digits), Ok(digits));
    }
}
