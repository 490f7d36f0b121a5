//! All checks over what a run left behind: invariants, witness, black box.

use crate::{
    history::{Name, Operation},
    invariants::{self, Broken, Evidence, Names},
    report::Failure,
    story, wgl, witness,
};

/// The operation whose windows outlast every run, driven by hand: what the black-box check judges.
const LONG: &str = "charge";

/// Checks everything; tells how many answers were certified.
///
/// # Errors
/// The first thing that does not hold, with the story of the record that shows it.
pub fn check(evidence: &Evidence) -> Result<u64, Failure> {
    all(evidence).map_err(|broken| Failure {
        what: broken.what.to_owned(),
        story: broken.about.as_ref().map(|about| story::of(evidence, about)).unwrap_or_default(),
        detail: match &broken.about {
            Some(about) => format!("{about}: {}", broken.detail),
            None => broken.detail,
        },
    })
}

fn all(evidence: &Evidence) -> Result<u64, Broken> {
    invariants::check(evidence)?;
    let certified = witness::check(evidence, &Names::of(evidence)?)?;
    // A restore loses what its backup did not hold: no order of the calls explains that, and none has to.
    if !evidence.was_restored() {
        let is_long = |name: &Name| name.operation == LONG;
        let operations: Vec<Operation> = evidence.operations.clone();
        wgl::check_all(&operations, is_long)?;
    }
    Ok(certified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn a_failure_comes_with_the_story_of_its_record() {
        let mut made = Made::new();
        let (a, b) = (made::name("a"), made::name("b"));
        let fence = made.claim(made::claim(&a, 1, 1), &a).expect("it is new");
        made.claim(made::claim(&b, 2, 1), &b);
        made.effect(&a, fence);
        assert!(check(&made.evidence()).is_ok_and(|certified| certified == 2));
        made.effect(&a, fence);
        let failure = check(&made.evidence()).unwrap_err();
        assert_eq!(failure.what, "R1");
        assert!(failure.story.iter().any(|line| line.contains("EFFECT")));
        assert!(failure.story.iter().all(|line| !line.contains("charge/b")));
    }
}
