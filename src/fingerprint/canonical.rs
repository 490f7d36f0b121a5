//! The canonical text of a JSON value: one text for all ways to write the value, and another for every other value.

use std::cmp::Ordering;

use super::Error;
use super::ignore::{Ignore, Selected};
use super::number::write_number;
use crate::json::{Json, write_string};
use crate::limits;

/// The canonical text of a value: no white space, members sorted by UTF-16 code units, numbers by value, strings with the
/// fewest escapes and no Unicode normalization.
pub fn canonical(value: &Json) -> Result<String, Error> {
    canonical_without(value, &Ignore::default())
}

/// The canonical text of a value from which the parts that `ignore` names were removed. What is removed may hold numbers
/// without a canonical form; its depth counts.
pub fn canonical_without(value: &Json, ignore: &Ignore) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, &ignore.select(), limits::JSON_DEPTH_MAX)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Json, ignored: &Selected<'_>, depth_left: usize) -> Result<(), Error> {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Number(number) => write_number(out, number)?,
        Json::String(string) => write_string(out, string),
        Json::Array(items) => {
            let depth_left = depth_left.checked_sub(1).ok_or(Error::TooDeep)?;
            out.push('[');
            let mut separator = "";
            for (index, item) in items.iter().enumerate() {
                let Some(ignored) = ignored.item(index) else {
                    check_depth(item, depth_left)?;
                    continue;
                };
                out.push_str(separator);
                separator = ",";
                write_value(out, item, &ignored, depth_left)?;
            }
            out.push(']');
        }
        Json::Object(members) => {
            let depth_left = depth_left.checked_sub(1).ok_or(Error::TooDeep)?;
            out.push('{');
            let mut separator = "";
            for (name, member) in sorted(members)? {
                let Some(ignored) = ignored.member(name) else {
                    check_depth(member, depth_left)?;
                    continue;
                };
                out.push_str(separator);
                separator = ",";
                write_string(out, name);
                out.push(':');
                write_value(out, member, &ignored, depth_left)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

/// The members in canonical order. The parser lets no duplicate through, but a value may be built by hand.
pub(super) fn sorted(members: &[(String, Json)]) -> Result<Vec<&(String, Json)>, Error> {
    let mut sorted: Vec<&(String, Json)> = members.iter().collect();
    sorted.sort_unstable_by(|(a, _), (b, _)| utf16_order(a, b));
    if sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::DuplicateMember);
    }
    Ok(sorted)
}

/// The order of two strings by UTF-16 code units, read off their UTF-8. The two orders differ only where U+E000–U+FFFF
/// (first byte EE or EF) meets a surrogate pair (first byte F0–F4), whose code units are lower.
pub(super) fn utf16_order(a: &str, b: &str) -> Ordering {
    let rank = |byte: u8| if matches!(byte, 0xee | 0xef) { byte + 0x10 } else { byte };
    match a.bytes().zip(b.bytes()).find(|(x, y)| x != y) {
        Some((x, y)) => rank(x).cmp(&rank(y)),
        None => a.len().cmp(&b.len()),
    }
}

/// Checks the depth of what isn't hashed, so that ignoring a part never changes which requests are acceptable.
pub(super) fn check_depth(value: &Json, depth_left: usize) -> Result<(), Error> {
    let within = |_| depth_left.checked_sub(1).ok_or(Error::TooDeep);
    match value {
        Json::Array(items) => {
            let depth_left = within(())?;
            items.iter().try_for_each(|item| check_depth(item, depth_left))
        }
        Json::Object(members) => {
            let depth_left = within(())?;
            members.iter().try_for_each(|(_, member)| check_depth(member, depth_left))
        }
        _ => Ok(()),
    }
}
