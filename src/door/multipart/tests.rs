//! Multipart bodies: what counts, what doesn't, and any bytes at all.

use proptest::prelude::*;

use super::*;
use crate::fuzz::Target;

fn form(boundary: &str, parts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = String::new();
    for (head, content) in parts {
        body += &format!("--{boundary}\r\n{head}\r\n\r\n{content}\r\n");
    }
    (body + &format!("--{boundary}--\r\n")).into_bytes()
}

fn read(boundary: &str, body: &[u8]) -> Option<Vec<Part>> {
    parts(format!("multipart/form-data; boundary={boundary}").as_bytes(), body)
}

const TEXT: &str = "Content-Disposition: form-data; name=\"note\"";
const FILE: &str = "Content-Disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\nContent-Type: text/plain";

#[test]
fn the_boundary_does_not_count_and_everything_else_does() {
    let one = read("one", &form("one", &[(TEXT, "hello"), (FILE, "x\r\ny")])).unwrap();
    assert_eq!(one.len(), 2);
    assert_eq!(one[1].filename.as_deref(), Some(&b"a.txt"[..]));
    assert_eq!(read("other", &form("other", &[(TEXT, "hello"), (FILE, "x\r\ny")])), Some(one.clone()));
    for other in [
        form("b", &[(FILE, "x\r\ny"), (TEXT, "hello")]),
        form("b", &[(TEXT, "hello"), (FILE, "x\r\nz")]),
        form("b", &[(TEXT, "hello"), (&FILE.replace("a.txt", "b.txt"), "x\r\ny")]),
        form("b", &[(TEXT, "hello"), (&FILE.replace("plain", "html"), "x\r\ny")]),
        form("b", &[(TEXT, "hello")]),
    ] {
        assert_ne!(read("b", &other).unwrap(), one);
    }
}

#[test]
fn a_boundary_may_be_quoted() {
    let body = form("a b:c", &[(TEXT, "1")]);
    assert!(parts(b"multipart/form-data; charset=utf-8; boundary=\"a b:c\"", &body).is_some());
    assert!(parts(b"multipart/form-data", &body).is_none());
    assert!(parts(b"multipart/form-data; boundary=\"a b:c\"; boundary=x", &body).is_none());
}

#[test]
fn a_line_that_begins_like_the_boundary_is_content() {
    let body = form("b", &[(TEXT, "1\r\n--bb\r\n2")]);
    assert_eq!(read("b", &body).unwrap().len(), 1);
}

#[test]
fn what_is_not_plain_is_no_multipart_body() {
    let whole = form("b", &[(TEXT, "1")]);
    assert!(read("b", &whole[..whole.len() - 4]).is_none(), "cut off");
    assert!(read("b", b"").is_none());
    assert!(read("b", b"--b--\r\n").is_none());
    assert!(read("b", &[b"preamble\r\n", &whole[..]].concat()).is_none());
    assert!(read("b", &[&whole[..], b"epilogue"].concat()).is_none());
    let other_head = "Content-Disposition: form-data; name=\"n\"\r\nContent-Transfer-Encoding: base64";
    assert!(read("b", &form("b", &[(other_head, "MQ==")])).is_none(), "a header that is left out would not count");
    let extended = "Content-Disposition: form-data; name=\"n\"; filename*=UTF-8''x";
    assert!(read("b", &form("b", &[(extended, "1")])).is_none());
}

#[test]
fn fuzz_multipart() {
    let good = form("b", &[(TEXT, "one"), (TEXT, "two\r\n")]);
    let words =
        &["--b", "--b--", "\r\n", "\r\n\r\n", "Content-Disposition: form-data; name=\"n\"", "Content-Type: a/b"];
    let target = Target { name: "multipart", good: vec![good.clone()], words, cases: 3000 };
    target.run(
        |_| {},
        |bytes| {
            let _ = parts(bytes, &good);
            read("b", bytes).is_some()
        },
    );
}

proptest! {
    #[test]
    fn parts_survive_any_boundary(
        first in "[a-zA-Z0-9]{1,70}", second in "[a-zA-Z0-9]{1,70}",
        contents in prop::collection::vec("[ -~\r\n]{0,40}", 1..5),
    ) {
        prop_assume!(contents.iter().all(|content| !content.contains("--")));
        let parts: Vec<_> = contents.iter().map(|content| (TEXT, content.as_str())).collect();
        let one = read(&first, &form(&first, &parts));
        prop_assert_eq!(one.as_ref().map(Vec::len), Some(parts.len()));
        prop_assert_eq!(read(&second, &form(&second, &parts)), one);
    }

    #[test]
    fn any_bytes_are_parts_or_not(body in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'-'), Just(b'\r'), Just(b'\n'), Just(b'b')], 0..200), content_type in "multipart/[ -~]{0,40}") {
        let _ = read("b", &body);
        let _ = parts(content_type.as_bytes(), &body);
        let mut framed = b"--b\r\n".to_vec();
        framed.extend_from_slice(&body);
        framed.extend_from_slice(b"\r\n--b--\r\n");
        let _ = read("b", &framed);
    }
}
