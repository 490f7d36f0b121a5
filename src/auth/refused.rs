//! Who was turned away lately, and why, for the audit: counted in groups, so that a flood leaves one row and no more.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use super::token::{ID_BYTES, id_text};
use crate::{json::Json, limits};

/// Why a credential was none. Nobody who shows one is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// None was shown.
    Missing,
    /// It has not the form of one.
    Malformed,
    /// Nobody has it.
    Unknown,
    /// The id is known, the secret is another.
    WrongSecret,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
    /// What it allows can't be read: this node lacks a key.
    Unreadable,
    /// A JSON Web Token that none of the known keys has signed.
    JwtSignature,
    /// One that says what it may not, or not what it must.
    JwtClaims,
    /// One whose time has not come, or is over.
    JwtTime,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Reason::Missing => "missing",
            Reason::Malformed => "malformed",
            Reason::Unknown => "unknown",
            Reason::WrongSecret => "wrong_secret",
            Reason::Expired => "expired",
            Reason::Revoked => "revoked",
            Reason::Unreadable => "unreadable",
            Reason::JwtSignature => "jwt_signature",
            Reason::JwtClaims => "jwt_claims",
            Reason::JwtTime => "jwt_time",
        }
    }
}

/// A refusal: why, and by which token's id where one was shown.
pub(super) type Why = (Reason, Option<[u8; ID_BYTES]>);

/// Refusals in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    groups: BTreeMap<Why, u64>,
    /// Those that found no group.
    others: u64,
}

impl Refusals {
    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.others == 0
    }

    fn add(&mut self, why: Why, count: u64) {
        let (reason, id) = why;
        // Ids that nobody has can be made up without end: they leave room for those that somebody has.
        let most = match (reason, id) {
            (Reason::Unknown, Some(_)) => limits::REFUSED_GROUPS_MAX / 2,
            _ => limits::REFUSED_GROUPS_MAX,
        };
        let is_full = self.groups.len() >= most;
        match self.groups.get_mut(&why) {
            Some(known) => *known += count,
            None if is_full && reason == Reason::Unknown && id.is_some() => self.add((reason, None), count),
            None if is_full => self.others += count,
            None => {
                self.groups.insert(why, count);
            }
        }
    }

    /// As the audit tells it.
    pub fn json(&self) -> Json {
        let group = |((reason, id), count): (&Why, &u64)| {
            let id = id.map_or(Json::Null, |id| Json::String(id_text(&id)));
            Json::object([
                ("reason", Json::String(reason.as_str().to_owned())),
                ("token_id", id),
                ("count", Json::u64_text(*count)),
            ])
        };
        let groups = self.groups.iter().map(group).collect();
        Json::object([("groups", Json::Array(groups)), ("others", Json::u64_text(self.others))])
    }
}

/// Those since the last look.
#[derive(Clone, Debug, Default)]
pub(super) struct Lately(Arc<Mutex<Refusals>>);

impl Lately {
    pub fn add(&self, why: Why) {
        self.0.lock().add(why, 1);
    }

    /// Takes them.
    pub fn take(&self) -> Refusals {
        std::mem::take(&mut self.0.lock())
    }

    /// Puts back what was taken and came to nothing.
    pub fn put_back(&self, taken: Refusals) {
        let mut lately = self.0.lock();
        taken.groups.into_iter().for_each(|(why, count)| lately.add(why, count));
        lately.others += taken.others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> [u8; ID_BYTES] {
        [number; ID_BYTES]
    }

    #[test]
    fn refusals_are_counted_in_groups_and_their_number_is_bounded() {
        let lately = Lately::default();
        assert!(lately.take().is_empty());
        for _ in 0..3 {
            lately.add((Reason::Missing, None));
            lately.add((Reason::Revoked, Some(id(1))));
        }
        let taken = lately.take();
        assert!(lately.take().is_empty(), "each is told once");
        let text = taken.json().to_text();
        let one = id_text(&id(1));
        assert_eq!(
            text,
            format!(
                r#"{{"groups":[{{"reason":"missing","token_id":null,"count":"3"}},{{"reason":"revoked","token_id":"{one}","count":"3"}}],"others":"0"}}"#
            )
        );
        lately.add((Reason::Missing, None));
        lately.put_back(taken);
        assert!(lately.take().json().to_text().contains(r#""missing","token_id":null,"count":"4""#));

        // Whoever makes up ids hides nobody else's.
        (0..200).for_each(|number| lately.add((Reason::Unknown, Some(id(number)))));
        lately.add((Reason::Expired, Some(id(201))));
        let taken = lately.take();
        assert_eq!(taken.groups.get(&(Reason::Expired, Some(id(201)))), Some(&1));
        assert_eq!(taken.groups.values().sum::<u64>(), 201);
        assert!(taken.groups.len() <= limits::REFUSED_GROUPS_MAX / 2 + 2, "{}", taken.groups.len());
        (0..200).for_each(|number| lately.add((Reason::WrongSecret, Some(id(number)))));
        let taken = lately.take();
        let most = limits::REFUSED_GROUPS_MAX;
        assert_eq!((taken.groups.len(), taken.others), (most, 200 - most as u64));
    }
}
