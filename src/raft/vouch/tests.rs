use std::collections::BTreeSet;

use super::*;
use crate::{
    id::LineageId,
    raft::{
        Member,
        types::{LeaderId, LogId, Membership, Vote, log_id},
    },
};

fn vote(term: u64) -> Vote {
    Vote { leader_id: LeaderId { term, node_id: 1 }, committed: true }
}

fn id(term: u64, index: u64) -> LogId {
    log_id(term, 1, index)
}

/// The membership of nodes 1 to 3, logged at `index`, in which node 1 has this disk.
fn membership(index: u64, disk: u8) -> StoredMembership {
    let member = |disk| Member { peer_addr: "p".into(), client_addr: "c".into(), disk_id: DiskId([disk; 16]) };
    let nodes = BTreeMap::from([(1, member(disk)), (2, member(2)), (3, member(3))]);
    let membership = Membership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap();
    StoredMembership::new(Some(id(1, index)), membership)
}

fn unvouched() -> Unvouched {
    let (lineage_id, cluster_id) = (LineageId([7; 16]), ClusterId([8; 16]));
    let identity = Identity { lineage_id, cluster_id, node_id: 1, disk_id: DiskId([1; 16]) };
    let own = Acknowledged { vote: Some(vote(4)), log: Some(id(4, 90)) };
    Unvouched { identity, own, membership: membership(5, 1), named: named() }
}

fn named() -> Vec<Founder> {
    let named = |node_id| Founder { node_id, peer_addr: "p".into(), client_addr: "c".into() };
    [1, 2, 3].map(named).to_vec()
}

fn said(disk: u8, remembered: Option<Acknowledged>) -> Said {
    let hello = Hello {
        state: NodeState::Taking,
        remembered: remembered.map(|known| (DiskId([1; 16]), known)),
        membership: membership(5, 1),
        ..Hello::default()
    };
    Said { cluster_id: ClusterId([8; 16]), disk_id: DiskId([disk; 16]), hello }
}

fn known(term: u64, index: u64) -> Option<Acknowledged> {
    Some(Acknowledged { vote: Some(vote(term)), log: Some(id(term, index)) })
}

fn judge(said: impl IntoIterator<Item = (NodeId, Said)>) -> Verdict {
    unvouched().judge(&said.into_iter().collect())
}

#[test]
fn a_quorum_that_remembers_nothing_more_vouches() {
    assert_eq!(judge([]), Verdict::Wait, "one of three is no quorum");
    assert_eq!(judge([(2, said(2, None))]), Verdict::Vouched);
    assert_eq!(judge([(3, said(3, known(4, 90)))]), Verdict::Vouched);
    assert_eq!(judge([(3, said(3, known(3, 900)))]), Verdict::Vouched, "an entry of an earlier term is not more");
}

#[test]
fn whoever_remembers_more_is_believed_also_against_a_quorum() {
    assert_eq!(judge([(2, said(2, known(4, 91)))]), Verdict::Regressed(2));
    assert_eq!(judge([(2, said(2, None)), (3, said(3, known(5, 90)))]), Verdict::Regressed(3));
    let voted = Acknowledged { vote: Some(vote(5)), log: None };
    assert_eq!(judge([(2, said(2, Some(voted)))]), Verdict::Regressed(2));
}

#[test]
fn strangers_and_nodes_without_a_log_vouch_for_nobody() {
    assert_eq!(judge([(2, said(9, None))]), Verdict::Wait, "another disk");
    assert_eq!(judge([(4, said(4, None))]), Verdict::Wait, "no member");
    let mut elsewhere = said(2, None);
    elsewhere.cluster_id = ClusterId([9; 16]);
    assert_eq!(judge([(2, elsewhere)]), Verdict::Wait, "another cluster");
    for state in [NodeState::Unformed, NodeState::Promised, NodeState::Quarantined, NodeState::WaitingForReplace] {
        let mut without = said(2, None);
        without.hello.state = state;
        assert_eq!(judge([(2, without)]), Verdict::Wait, "{state:?}");
    }
    let mut restarted = said(2, None);
    restarted.hello.state = NodeState::Unvouched;
    assert_eq!(judge([(2, restarted)]), Verdict::Vouched, "two that have just restarted vouch for each other");
}

#[test]
fn what_is_remembered_of_another_disk_says_nothing_of_this_one() {
    let mut other = said(2, known(9, 900));
    other.hello.remembered = Some((DiskId([5; 16]), known(9, 900).unwrap()));
    assert_eq!(judge([(2, other)]), Verdict::Vouched);
}

#[test]
fn a_newer_membership_tells_what_became_of_this_node() {
    let mut replaced = said(2, None);
    replaced.hello.membership = membership(6, 77);
    assert_eq!(judge([(2, replaced.clone())]), Verdict::Replaced);
    replaced.hello.membership = membership(4, 77);
    assert_eq!(judge([(2, replaced)]), Verdict::Vouched, "an older one is no news");
    let member = |disk| Member { peer_addr: "p".into(), client_addr: "c".into(), disk_id: DiskId([disk; 16]) };
    let others = Membership::new(vec![BTreeSet::from([2, 3])], BTreeMap::from([(2, member(2)), (3, member(3))]));
    let mut removed = said(2, None);
    removed.hello.membership = StoredMembership::new(Some(id(1, 6)), others.unwrap());
    assert_eq!(judge([(2, removed)]), Verdict::Removed);
}

/// An empty log tells of no members: the promise does, and who has promised itself too vouches as well.
#[test]
fn a_node_with_an_empty_log_is_vouched_for_by_those_whom_its_promise_names() {
    let empty = Unvouched { own: Acknowledged::default(), membership: StoredMembership::default(), ..unvouched() };
    assert!(empty.has_others());
    let alone = Unvouched { named: named()[..1].to_vec(), ..empty.clone() };
    assert!(!alone.has_others());
    let judge = |said: Vec<(NodeId, Said)>| empty.judge(&said.into_iter().collect());
    let promised = |remembered| {
        let mut said = said(2, remembered);
        said.hello.state = NodeState::Promised;
        said.hello.membership = StoredMembership::default();
        said
    };
    assert_eq!(judge(vec![]), Verdict::Wait);
    assert_eq!(judge(vec![(2, promised(None))]), Verdict::Vouched);
    assert_eq!(judge(vec![(4, promised(None))]), Verdict::Wait, "nobody has named it");
    assert_eq!(judge(vec![(2, promised(known(1, 1)))]), Verdict::Regressed(2));
    let mut elsewhere = promised(None);
    elsewhere.cluster_id = ClusterId([9; 16]);
    assert_eq!(judge(vec![(2, elsewhere)]), Verdict::Wait);
    // As soon as somebody tells of a membership, that one counts.
    assert_eq!(judge(vec![(2, said(2, known(4, 90)))]), Verdict::Regressed(2));
    assert_eq!(judge(vec![(2, said(2, None))]), Verdict::Vouched);
}

/// Only of a log that holds what a restore has laid out and no more.
#[test]
fn who_has_only_promised_itself_vouches_for_a_restore_that_broke_off() {
    let with_log = |term, index| Unvouched {
        own: Acknowledged { vote: Some(vote(1)), log: Some(id(term, index)) },
        membership: membership(1, 1),
        ..unvouched()
    };
    let promised = || {
        let mut said = said(2, None);
        said.hello.state = NodeState::Promised;
        said.hello.membership = StoredMembership::default();
        BTreeMap::from([(2, said)])
    };
    assert_eq!(with_log(1, 2).judge(&promised()), Verdict::Vouched);
    assert_eq!(with_log(1, 3).judge(&promised()), Verdict::Wait);
    assert_eq!(with_log(2, 2).judge(&promised()), Verdict::Wait);
}
