//! Where two requests differ, for people who wonder about a conflict.

use std::cmp::Ordering;

use super::Error;
use super::canonical::{sorted, utf16_order};
use super::ignore::{Ignore, Selected, push_token};
use super::number::write_number;
use crate::json::{Json, Number};
use crate::limits;

/// One place at which two requests differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The JSON pointer (RFC 6901) of the place; empty where the whole requests differ.
    pub pointer: String,
    /// How they differ there.
    pub kind: DifferenceKind,
}

/// How two requests differ at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Both have a value, and the values differ.
    Changed,
    /// Only the first request has a value.
    OnlyInFirst,
    /// Only the second request has a value.
    OnlyInSecond,
}

/// The places at which two requests differ, in canonical order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Differences {
    /// At most [`limits::FINGERPRINT_DIFFERENCES_MAX`].
    pub places: Vec<Difference>,
    /// Whether there are more.
    pub more: bool,
}

/// Compares two requests by canonical value, as deep as both have objects or arrays. They have the same fingerprint under
/// `ignore` exactly if no place is found. Both must have a canonical form once what is ignored is left out.
pub fn differences(first: &Json, second: &Json, ignore: &Ignore) -> Result<Differences, Error> {
    // Refuses what has no fingerprint before anything is compared.
    super::canonical_without(first, ignore)?;
    super::canonical_without(second, ignore)?;
    let mut comparison = Comparison { pointer: String::new(), found: Differences::default() };
    comparison.values(first, second, &ignore.select())?;
    Ok(comparison.found)
}

struct Comparison {
    /// Where the two values being compared are.
    pointer: String,
    found: Differences,
}

impl Comparison {
    fn values(&mut self, first: &Json, second: &Json, ignored: &Selected<'_>) -> Result<(), Error> {
        let equal = match (first, second) {
            (Json::Object(first), Json::Object(second)) => return self.objects(first, second, ignored),
            (Json::Array(first), Json::Array(second)) => return self.arrays(first, second, ignored),
            (Json::Number(first), Json::Number(second)) => canonical_number(first)? == canonical_number(second)?,
            _ => first == second,
        };
        if !equal {
            self.note(DifferenceKind::Changed);
        }
        Ok(())
    }

    fn objects(
        &mut self,
        first: &[(String, Json)],
        second: &[(String, Json)],
        ignored: &Selected<'_>,
    ) -> Result<(), Error> {
        let (first, second) = (sorted(first)?, sorted(second)?);
        let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
        loop {
            let order = match (first.peek(), second.peek()) {
                _ if self.found.more => return Ok(()),
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => utf16_order(a, b),
            };
            let from_first = if order.is_le() { first.next() } else { None };
            let from_second = if order.is_ge() { second.next() } else { None };
            let Some((name, _)) = from_first.or(from_second) else { return Ok(()) };
            if let Some(ignored) = ignored.member(name) {
                self.either(name, from_first.map(|(_, v)| v), from_second.map(|(_, v)| v), &ignored)?;
            }
        }
    }

    fn arrays(&mut self, first: &[Json], second: &[Json], ignored: &Selected<'_>) -> Result<(), Error> {
        for index in 0..first.len().max(second.len()) {
            if self.found.more {
                break;
            }
            if let Some(ignored) = ignored.item(index) {
                self.either(&index.to_string(), first.get(index), second.get(index), &ignored)?;
            }
        }
        Ok(())
    }

    /// Compares what both have under `token`, or notes which of them has it.
    fn either(
        &mut self,
        token: &str,
        first: Option<&Json>,
        second: Option<&Json>,
        ignored: &Selected<'_>,
    ) -> Result<(), Error> {
        let length = self.pointer.len();
        push_token(&mut self.pointer, token);
        match (first, second) {
            (Some(first), Some(second)) => self.values(first, second, ignored)?,
            (Some(_), None) => self.note(DifferenceKind::OnlyInFirst),
            (None, Some(_)) => self.note(DifferenceKind::OnlyInSecond),
            (None, None) => {}
        }
        self.pointer.truncate(length);
        Ok(())
    }

    fn note(&mut self, kind: DifferenceKind) {
        if self.found.places.len() < limits::FINGERPRINT_DIFFERENCES_MAX {
            self.found.places.push(Difference { pointer: self.pointer.clone(), kind });
        } else {
            self.found.more = true;
        }
    }
}

fn canonical_number(number: &Number) -> Result<String, Error> {
    let mut text = String::new();
    write_number(&mut text, number)?;
    Ok(text)
}
