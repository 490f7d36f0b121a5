//! R10: replicas at the same position have byte-equal logical dumps (records.md, Invariants), and applied the same entries on
//! the way there.

use super::{Broken, Checked, Evidence, Names};

pub fn check(evidence: &Evidence, _: &Names) -> Checked {
    if let Some(diverged) = &evidence.diverged {
        return Err(Broken::of("R10", None, diverged.clone()));
    }
    for (at, (node, position, dump)) in evidence.dumps.iter().enumerate() {
        let twin = evidence.dumps[..at].iter().find(|(_, other, _)| other == position);
        let Some((other, _, twin)) = twin.filter(|(_, _, twin)| twin != dump) else { continue };
        let key = dump.keys().chain(twin.keys()).find(|key| dump.get(*key) != twin.get(*key));
        let key: String = key.into_iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        let detail = format!("n{node} and n{other} differ at position {position}, first at key {key}");
        return Err(Broken::of("R10", None, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::Made;

    #[test]
    fn a_replica_with_another_byte_is_found() {
        let mut evidence = Made::new().evidence();
        assert_eq!(check(&evidence, &Names::default()), Ok(()));
        let value = evidence.dumps[1].2.values_mut().next().expect("not empty");
        *value = b"another".as_slice().into();
        assert!(check(&evidence, &Names::default()).is_err_and(|broken| broken.detail.contains("n2 and n1")));
    }

    #[test]
    fn nodes_that_applied_something_else_are_told_of() {
        let evidence = Evidence { diverged: Some("n1 and n2".into()), ..Evidence::default() };
        assert!(check(&evidence, &Names::default()).is_err());
    }
}
