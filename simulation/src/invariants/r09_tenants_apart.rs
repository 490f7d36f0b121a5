//! R9: nothing of one tenant can be seen, probed, changed or counted by another (records.md, Invariants). Records keep their
//! tenant in the log, answers are about the record that was asked for, and no two records share a downstream key.

use std::collections::BTreeMap;

use super::{Broken, Checked, Evidence, Names};
use crate::history::{Answered, Call, Name};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    for (command, applied, _) in evidence.commands() {
        let Some(record) = crate::spec::record_of(command) else { continue };
        if let Some(name) = names.name(record).filter(|name| name.tenant != record.tenant.as_str()) {
            let detail = format!("position {} is of tenant {}", applied.index.0, record.tenant.as_str());
            return Err(Broken::of("R9", Some(name), detail));
        }
    }
    let mut keys: BTreeMap<&str, &Name> = BTreeMap::new();
    for operation in evidence.answered() {
        if let (Answered::Record(record), Call::Get(_) | Call::Investigate(_)) = (&operation.answered, &operation.call)
            && let Some(id) = &record.record
            && Name::of(id) != operation.name
        {
            let detail = format!("{operation}: the answer is about {}", Name::of(id));
            return Err(Broken::of("R9", Some(&operation.name), detail));
        }
        let key = match &operation.answered {
            Answered::Claim(answer) => answer.downstream_key.as_deref(),
            Answered::Record(record) => Some(record.downstream_key.as_str()),
            _ => None,
        };
        let Some(key) = key.filter(|key| !key.is_empty()) else { continue };
        let known = keys.entry(key).or_insert(&operation.name);
        if **known != operation.name {
            let detail = format!("shares its downstream key with {known}");
            return Err(Broken::of("R9", Some(&operation.name), detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use semel::proto::v1;

    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn an_answer_about_another_record_and_a_shared_downstream_key_are_found() {
        let mut made = Made::new();
        let (a, b) = (made::name("a"), Name { tenant: "globex".into(), ..made::name("a") });
        let get = |name: &Name| Call::Get(v1::GetRequest { record: Some(name.to_id()), with_outcome: None });
        let record = |name: &Name, key: &str| {
            let downstream_key = key.to_owned();
            let record = v1::Record { record: Some(name.to_id()), downstream_key, ..v1::Record::default() };
            Answered::Record(Box::new(record))
        };
        made.told(&a, get(&a), record(&a, "sml_a"));
        assert_eq!(check(&made.evidence(), &Names::default()), Ok(()));
        made.told(&b, get(&b), record(&b, "sml_a"));
        assert!(check(&made.evidence(), &Names::default()).is_err());
        made.evidence.operations.pop();
        made.told(&b, get(&b), record(&a, "sml_b"));
        assert!(check(&made.evidence(), &Names::default()).is_err());
    }
}
