//! Times as JSON carries them (RFC 3339): in with `Z` or an offset and up to nine fraction digits, out in `Z` with three.

use prost_types::Timestamp;
use time::{Date, Month, PrimitiveDateTime, Time, UtcOffset};

use crate::limits;

/// What a time takes, for messages.
pub(super) const EXPECTED: &str = "an RFC 3339 time like \"2026-01-31T09:30:00.000Z\"";

/// Reads a time; none for anything else than RFC 3339 in its plain form.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if !text.is_ascii() || bytes.len() < "2026-01-31T09:30:00Z".len() {
        return None;
    }
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(at, byte)| bytes[at] != byte) || !bytes[10].eq_ignore_ascii_case(&b'T') {
        return None;
    }
    let month = Month::try_from(u8::try_from(digits(&text[5..7])?).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(digits(&text[..4])?).ok()?, month, small(&text[8..10])?).ok()?;
    let (fraction, offset) = fraction(&text[19..])?;
    let time = Time::from_hms(small(&text[11..13])?, small(&text[14..16])?, small(&text[17..19])?).ok()?;
    let moment = PrimitiveDateTime::new(date, time).assume_offset(parse_offset(offset)?);
    Some(Timestamp { seconds: moment.unix_timestamp(), nanos: fraction })
}

/// The fraction in nanoseconds, and what follows it.
fn fraction(text: &str) -> Option<(i32, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    if !(1..=9).contains(&length) {
        return None;
    }
    let value = i32::try_from(digits(&rest[..length])?).ok()?;
    let missing = u32::try_from(9 - length).ok()?;
    Some((value * 10_i32.pow(missing), &rest[length..]))
}

fn parse_offset(text: &str) -> Option<UtcOffset> {
    if text.eq_ignore_ascii_case("z") {
        return Some(UtcOffset::UTC);
    }
    let bytes = text.as_bytes();
    if bytes.len() != 6 || bytes[3] != b':' {
        return None;
    }
    let sign = match bytes[0] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (i8::try_from(small(&text[1..3])?).ok()?, i8::try_from(small(&text[4..])?).ok()?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    UtcOffset::from_hms(sign * hours, sign * minutes, 0).ok()
}

fn digits(text: &str) -> Option<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn small(text: &str) -> Option<u8> {
    u8::try_from(digits(text)?).ok()
}

/// Writes a time; what lies beyond RFC 3339's years is written as their end.
pub(super) fn write(time: &Timestamp) -> String {
    let last = i64::try_from(limits::TIME_S_MAX).expect("the year 9999 fits an i64");
    let seconds = u64::try_from(time.seconds.clamp(0, last)).expect("clamped to what is not negative");
    let ms = u64::try_from(time.nanos.clamp(0, 999_999_999) / 1_000_000).expect("clamped to what is not negative");
    crate::id::Time(seconds * 1000 + ms).text()
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn times_are_read_in_every_offset_and_written_in_utc() {
        for (text, same) in [
            ("2026-01-31T09:30:00Z", "2026-01-31T09:30:00.000Z"),
            ("2026-01-31T09:30:00.1239999Z", "2026-01-31T09:30:00.123Z"),
            ("2026-01-31T00:30:00.5+02:00", "2026-01-30T22:30:00.500Z"),
            ("2026-01-31t23:30:00-01:30", "2026-02-01T01:00:00.000Z"),
            ("1970-01-01T00:00:00z", "1970-01-01T00:00:00.000Z"),
            ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999Z"),
            ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000Z"),
        ] {
            assert_eq!(parse(text).map(|time| write(&time)).as_deref(), Some(same), "{text}");
        }
    }

    #[test]
    fn what_is_no_plain_rfc_3339_time_is_refused() {
        for text in [
            "",
            "2026-01-31",
            "2026-01-31T09:30:00",
            "2026-01-31 09:30:00Z",
            "2026-01-31T09:30Z",
            "2026-01-31T09:30:00.Z",
            "2026-01-31T09:30:00.1234567890Z",
            "2026-01-31T09:30:00,5Z",
            "2026-02-30T09:30:00Z",
            "2026-13-01T09:30:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T09:30:60Z",
            "2026-01-31T09:30:00+0200",
            "2026-01-31T09:30:00+24:00",
            "2026-01-31T09:30:00+02:60",
            "2026-01-31T09:30:00Zx",
            "+026-01-31T09:30:00Z",
            "12026-01-31T09:30:00Z",
            "2026-01-31T09:30:00\u{e9}Z",
            "1769851800",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_day_of_some_centuries_is_written_as_it_is() {
        let mut moment = OffsetDateTime::UNIX_EPOCH;
        while moment.year() < 2500 {
            let seconds = moment.unix_timestamp();
            let (year, month, day) = moment.to_calendar_date();
            let expected = format!("{year:04}-{:02}-{day:02}T23:59:59.007Z", u8::from(month));
            let time = Timestamp { seconds: seconds + 86_399, nanos: 7_999_999 };
            assert_eq!(write(&time), expected);
            moment += time::Duration::DAY;
        }
    }
}
