use semel::{
    proto::v1,
    records::command::{Claim, Verdict as Found},
};

use super::*;
use crate::made::{self, Made};

fn checked(made: &Made) -> Result<Verdict, Broken> {
    let operations: Vec<&Operation> = made.evidence.operations.iter().collect();
    check(&made::name("a"), &operations)
}

fn completed() -> Made {
    let mut made = Made::new();
    let name = made::name("a");
    let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
    made.claim(made::claim(&name, 2, 1), &name);
    made.claim(made::claim(&name, 3, 2), &name);
    made.checkpoint(&name, fence, "half way");
    made.complete(&name, fence, "done");
    made.complete(&name, fence, "done");
    made.complete(&name, fence, "other");
    made.claim(made::claim(&name, 4, 1), &name);
    made
}

fn answer(operation: &mut Operation) -> &mut v1::ClaimAnswer {
    match &mut operation.answered {
        Answered::Claim(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_life_of_a_key_is_in_order() {
    assert_eq!(checked(&completed()), Ok(Verdict::Linearizable(8)));
    let mut made = Made::new();
    let name = made::name("a");
    let staged = |attempt| Claim { staged: true, ..made::claim(&name, attempt, 1) };
    let fence = made.claim(staged(1), &name).expect("it is new");
    made.wait_ms(5_000);
    let taken = made.claim(staged(2), &name).expect("it lapsed");
    made.release(&name, fence);
    made.suspend(&name, taken);
    made.claim(staged(3), &name);
    made.release(&name, taken);
    made.claim(staged(4), &name).expect("it was released");
    assert_eq!(checked(&made), Ok(Verdict::Linearizable(7)));
}

#[test]
fn two_owners_at_once_are_found() {
    let mut made = completed();
    let mut second = made.evidence.operations[0].clone();
    second.invoked = made.evidence.operations[1].invoked;
    second.returned = made.evidence.operations[1].returned;
    answer(&mut second).fence = Some(99);
    made.evidence.operations[1] = second;
    assert!(checked(&made).is_err());
}

#[test]
fn a_fence_that_comes_twice_is_found() {
    let mut made = Made::new();
    let name = made::name("a");
    let first = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
    made.release(&name, first);
    made.claim(made::claim(&name, 2, 1), &name).expect("it is new again");
    assert!(checked(&made).is_ok());
    answer(made.evidence.operations.last_mut().expect("the claim")).fence = Some(first);
    assert!(checked(&made).is_err());
}

#[test]
fn a_stale_read_is_found_and_one_that_was_under_way_is_not() {
    let mut made = completed();
    let stale = made.evidence.operations[1].clone();
    let last = made.evidence.operations.last_mut().expect("the replay");
    last.answered = stale.answered.clone();
    assert!(checked(&made).is_err(), "in progress, after everybody knew that it was done");
    // Sent while the owner was at it: then it is right.
    let last = made.evidence.operations.last_mut().expect("the replay");
    last.invoked = stale.invoked;
    let mut operations: Vec<&Operation> = made.evidence.operations.iter().collect();
    operations.sort_by_key(|operation| (operation.invoked, operation.id));
    assert!(check(&made::name("a"), &operations).is_ok());
}

#[test]
fn a_replay_of_something_else_is_found() {
    let mut made = completed();
    let last = made.evidence.operations.last_mut().expect("the replay");
    answer(last).outcome.as_mut().expect("a replay").body = Some("forged".into());
    assert!(checked(&made).is_err());
}

#[test]
fn a_rerun_without_a_statement_is_found() {
    let mut made = Made::new();
    let name = made::name("a");
    let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
    made.suspend(&name, fence);
    let mut granted = made.evidence.operations[0].clone();
    (granted.invoked, granted.returned) = (made.micros(), Some(made.micros() + 1));
    answer(&mut granted).fence = Some(fence + 10);
    made.evidence.operations.push(granted);
    assert!(checked(&made).is_err());
}

#[test]
fn what_nobody_learnt_may_have_taken_place_or_not() {
    for is_done in [true, false] {
        let mut made = completed();
        let last = made.evidence.operations.len() - 1;
        // The first report is lost; only the replay tells that it was taken.
        made.evidence.operations.drain(5..last);
        made.evidence.operations[4].answered = Answered::Unknown("lost".into());
        if !is_done {
            made.evidence.operations.pop();
        }
        let operations: Vec<&Operation> = made.evidence.operations.iter().collect();
        let items = items(&operations);
        let mut search = Search { items: &items, seen: HashSet::new(), steps: 0, deepest: 0 };
        assert_eq!(search.run(), Some(true));
        assert_eq!(checked(&made), Ok(Verdict::NotJudged("too many calls whose result nobody knows")));
    }
}

#[test]
fn a_verdict_makes_a_key_claimable() {
    let mut made = Made::new();
    let name = made::name("a");
    let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
    made.suspend(&name, fence);
    made.resolve(&name, Found::NoEffect(()), 1);
    let mut request = v1::ResolveRequest::default();
    request.set_verdict(v1::Verdict::NoEffect);
    let mut told = v1::OwnerAnswer::default();
    told.set_state(v1::State::Absent);
    made.told(&name, Call::Resolve(Box::new(request)), Answered::Owner(told));
    made.claim(made::claim(&name, 2, 1), &name).expect("it is new again");
    assert_eq!(checked(&made), Ok(Verdict::Linearizable(4)));
}

#[test]
fn long_histories_are_cut_where_nothing_is_under_way() {
    let mut made = completed();
    let replay = made.evidence.operations.last().expect("the replay").clone();
    for _ in 0..OPERATIONS_MAX {
        let (call, answered) = (replay.call.clone(), replay.answered.clone());
        made.told(&made::name("a"), call, answered);
    }
    assert!(
        matches!(checked(&made), Ok(Verdict::Linearizable(calls)) if calls as usize >= OPERATIONS_MAX - 2),
        "{:?}",
        checked(&made)
    );
}

#[test]
fn a_try_before_the_one_that_was_answered_may_have_been_taken() {
    let mut made = Made::new();
    let name = made::name("a");
    let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
    made.wait_ms(9_000);
    made.claim(made::claim(&name, 1, 1), &name);
    // One call for its caller: the first try was lost, the second finds what became of the first.
    let second = made.evidence.operations.pop().expect("the second try");
    let first = &mut made.evidence.operations[0];
    (first.answered, first.returned) = (second.answered, second.returned);
    assert!(checked(&made).is_ok());
    made.suspend(&name, fence);
    assert!(checked(&made).is_ok(), "the fence is learnt when it is shown");
}
