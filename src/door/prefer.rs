//! `Prefer: wait=N` (RFC 7240): how long a caller is ready to wait for another one that is at the same.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// What a caller would like.
pub const PREFER: HeaderName = HeaderName::from_static("prefer");
/// What of it was done.
pub const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// How long the caller would like to wait. Of several `wait` the first counts alone; one that is malformed, negative or 0
/// is none.
pub fn wait(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
    let mut preferences = lines.flat_map(|line| split(line, ',')).map(|preference| {
        // Parameters follow a semicolon, and `wait` has none that would change it.
        split(preference, ';').into_iter().next().unwrap_or_default()
    });
    let first = preferences.find_map(|preference| {
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().to_owned())
    })?;
    let quoted = first.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let digits = quoted.unwrap_or(&first);
    // More digits than any wait has mean the longest one, whatever their number is.
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = if is_number { digits.parse().unwrap_or(u64::from(u32::MAX)) } else { 0 };
    (seconds > 0).then(|| Duration::from_secs(seconds.min(u64::from(u32::MAX))))
}

/// The parts between these separators, those inside quotes apart.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut from, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            c if c == separator && !quoted => {
                parts.push(&text[from..at]);
                from = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waits(lines: &[&str]) -> Option<u64> {
        let headers: HeaderMap = lines.iter().map(|line| (PREFER, line.parse().unwrap())).collect();
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn waits_are_read_in_every_form() {
        assert_eq!(waits(&["wait=10"]), Some(10));
        assert_eq!(waits(&["WAIT = \"10\""]), Some(10));
        assert_eq!(waits(&["respond-async, wait=5; x=1, wait=9"]), Some(5));
        assert_eq!(waits(&["foo=\"a, wait=3\"", "wait=4"]), Some(4));
        assert_eq!(waits(&["wait=99999999999999999999999"]), Some(u64::from(u32::MAX)));
    }

    #[test]
    fn what_is_no_wait_is_ignored() {
        for line in ["", "wait", "wait=", "wait=-1", "wait=0", "wait=1.5", "wait=x", "wait=\"1", "waits=3", "wait=+3"] {
            assert_eq!(waits(&[line]), None, "{line}");
        }
        assert_eq!(waits(&["wait=x", "wait=3"]), None, "the first counts alone");
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in "[ -~]{0,60}") {
            let _ = waits(&[&line]);
        }
    }
}
