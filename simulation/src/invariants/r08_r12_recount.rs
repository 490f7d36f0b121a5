//! R8: counters equal a recount; admission holds at every position. R12: every head with a next deadline has exactly one
//! deadline entry, at it (records.md, Invariants). The recount is the product's own check of a whole state, which shares no
//! code with what counts while applying; admission is judged by the witness.

use semel::records::check;

use super::{Broken, Checked, Evidence, Names};

pub fn check(evidence: &Evidence, _: &Names) -> Checked {
    for (node, position, dump) in &evidence.dumps {
        check::check(dump).map_err(|error| {
            let what = match &error {
                check::CheckError::Broken { invariant, .. } if *invariant == "R12" => "R12",
                _ => "R8",
            };
            Broken::of(what, None, format!("n{node} at position {position}: {error}"))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use semel::records::keys::StoreKey;

    use super::*;
    use crate::made::{self, Made};

    fn broken(is_spoilt: impl Fn(&StoreKey) -> bool) -> Checked {
        let mut made = Made::new();
        let name = made::name("a");
        made.claim(made::claim(&name, 1, 1), &name);
        let mut evidence = made.evidence();
        assert_eq!(check(&evidence, &Names::default()), Ok(()));
        evidence.dumps[1].2.retain(|key, _| !is_spoilt(&StoreKey::decode(key).expect("a key")));
        check(&evidence, &Names::default())
    }

    #[test]
    fn a_counter_that_is_missing_is_found() {
        let found = broken(|key| matches!(key, StoreKey::Counters(..)));
        assert!(found.is_err_and(|broken| broken.what == "R8" && broken.detail.starts_with("n2")));
    }

    #[test]
    fn a_deadline_that_is_missing_is_found() {
        assert!(broken(|key| matches!(key, StoreKey::Deadline(..))).is_err());
    }
}
