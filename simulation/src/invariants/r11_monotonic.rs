//! R11: fences strictly increase; cluster time never decreases (records.md, Invariants). A fence is the position of its
//! grant, over all records and lives of the cluster.

use semel::records::command::Command;

use super::{Broken, Checked, Evidence, Names, granted};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    let (mut position, mut now, mut fence) = (0, 0, 0);
    for (command, applied, _) in evidence.commands() {
        let about = crate::spec::record_of(command).and_then(|record| names.name(record));
        let index = applied.index.0;
        if let Command::Restored(_) = command {
            // The time that a lost cluster had reached is lost with it, but for that of its backup.
            let backup = evidence.restores.get(&index).copied().unwrap_or_default();
            now = evidence.steps.iter().filter(|step| step.position <= backup).map(|step| step.time).max().unwrap_or(0);
        }
        if index <= position {
            return Err(Broken::of("R11", about, format!("position {index} after {position}")));
        }
        if applied.now.0 < now {
            let detail = format!("cluster time went back from {now} to {} at position {index}", applied.now.0);
            return Err(Broken::of("R11", about, detail));
        }
        (position, now) = (index, applied.now.0);
        if let Some(new) = granted(applied) {
            if new.fence.0 != index || new.fence.0 <= fence {
                let detail = format!("fence {} at position {index}, after fence {fence}", new.fence.0);
                return Err(Broken::of("R11", about, detail));
            }
            fence = new.fence.0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn time_or_positions_that_go_back_are_found() {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.complete(&name, fence, "done");
        let good = made.evidence();
        assert_eq!(check(&good, &Names::default()), Ok(()));
        let mut back = good.clone();
        back.steps.last_mut().expect("the report").commands[0].1.now.0 -= 10;
        assert!(check(&back, &Names::default()).is_err());
        let mut back = good;
        back.steps.swap(3, 4);
        assert!(check(&back, &Names::default()).is_err());
    }
}
