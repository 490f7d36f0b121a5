//! How a node and its cluster stand, as `GET /v1/status` tells it.

use crate::{
    json::Json,
    limits,
    raft::{DiskRoom, MemberStanding, MemberStatus, RoleWord, Status},
    store::directory::EngineKind,
};

fn text(value: impl ToString) -> Json {
    Json::String(value.to_string())
}

fn decimal(value: Option<u64>) -> Json {
    text(value.unwrap_or(0))
}

fn or_null<T: ToString>(value: Option<T>) -> Json {
    value.map_or(Json::Null, text)
}

fn number(value: impl ToString) -> Json {
    Json::parse(value.to_string().as_bytes()).expect("an integer is JSON")
}

fn object(members: Vec<(&'static str, Json)>) -> Json {
    Json::object(members)
}

/// The entries that a member lacks of the leader's log: known to the leader alone.
pub(super) fn lag(status: &Status, member: &MemberStatus) -> Option<u64> {
    let leads = status.role == RoleWord::Leader;
    leads.then(|| {
        let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
        next(status.last_log).saturating_sub(next(member.matched))
    })
}

/// What is known of a member: what it told itself, and what only the leader knows. Null stands for what isn't known.
fn member(status: &Status, member: &MemberStatus, own_disk_bytes: u64, own_room: Option<DiskRoom>) -> Json {
    let is_self = member.node_id == status.node_id;
    let leads = status.role == RoleWord::Leader;
    let is_leader = status.leader_id == Some(member.node_id);
    let role = match member.standing {
        MemberStanding::Voter if is_leader => "leader",
        MemberStanding::Voter => "voter",
        MemberStanding::Learner => "learner",
    };
    let told = member.told.as_ref();
    let is_reachable = is_self || told.is_some_and(|told| told.is_reachable);
    let (matched, lag) = match (leads, is_self) {
        (true, true) => (Some(status.last_log.unwrap_or(0)), Some(0)),
        (true, false) => (Some(member.matched.unwrap_or(0)), lag(status, member)),
        (false, _) => (None, None),
    };
    let state = match lag {
        _ if !is_reachable => member.instead.map_or("unreachable", RoleWord::as_str),
        Some(lag) if lag > limits::PROMOTE_LAG_MAX => "catching_up",
        _ => "ok",
    };
    let own = |own: u64, others: Option<u64>| or_null(if is_self { Some(own) } else { others });
    let clock = if is_self { Some(status.clock_offset_ms) } else { told.map(|told| told.clock_offset_ms) };
    let free_bytes =
        if is_self { own_room.map(|room| room.free_bytes) } else { told.and_then(|told| told.disk_free_bytes) };
    let is_full = if is_self { own_room.map(|room| room.is_full) } else { told.map(|told| told.disk_is_full) };
    let admin = told.map(|told| told.admin.clone()).filter(|admin| !admin.is_empty());
    object(vec![
        ("id", number(member.node_id)),
        ("disk_id", text(member.member.disk_id)),
        ("role", text(role)),
        ("state", if is_self || leads { text(state) } else { Json::Null }),
        ("term", own(status.term, told.map(|told| told.term))),
        ("last_log", own(status.last_log.unwrap_or(0), told.map(|told| told.last_log.unwrap_or(0)))),
        ("matched", or_null(matched)),
        ("lag", or_null(lag)),
        ("reachable", if leads { Json::Bool(is_reachable) } else { Json::Null }),
        ("clock_offset_ms", clock.map_or(Json::Null, number)),
        ("disk_bytes", own(own_disk_bytes, told.map(|told| told.disk_bytes))),
        ("disk_free_bytes", or_null(free_bytes)),
        ("disk_is_full", is_full.map_or(Json::Null, Json::Bool)),
        ("peer", text(&member.member.peer_addr)),
        ("client", text(&member.member.client_addr)),
        ("admin", or_null(admin)),
    ])
}

/// What is shown besides consensus.
pub(super) struct Whole {
    pub kind: EngineKind,
    pub disk_bytes: u64,
    pub room: Option<DiskRoom>,
    pub position: u64,
    pub records: u64,
    /// In thousandths, of a leader.
    pub time_rate: Option<u64>,
}

/// The whole of it.
pub(super) fn shown(status: &Status, whole: &Whole) -> Json {
    let Whole { kind, disk_bytes, room, position, records, time_rate } = *whole;
    let members = status.members.iter().map(|one| member(status, one, disk_bytes, room));
    object(vec![
        ("node_id", number(status.node_id)),
        ("cluster_id", or_null(status.cluster_id)),
        ("disk_id", or_null(status.disk_id)),
        ("role", text(status.role.as_str())),
        ("term", decimal(Some(status.term))),
        ("leader_id", status.leader_id.map_or(Json::Null, number)),
        ("last_log", decimal(status.last_log)),
        ("committed", decimal(status.committed)),
        ("applied", decimal(status.applied)),
        ("position", decimal(Some(position))),
        ("purged", decimal(status.purged)),
        ("snapshot", decimal(status.snapshot)),
        ("clock_offset_ms", number(status.clock_offset_ms)),
        ("time_rate_thousandths", time_rate.map_or(Json::Null, number)),
        ("members", Json::Array(members.collect())),
        ("store", text(kind)),
        ("disk_bytes", decimal(Some(disk_bytes))),
        ("disk_free_bytes", or_null(room.map(|room| room.free_bytes))),
        ("disk_reserve_bytes", or_null(room.map(|room| room.reserve_bytes))),
        ("disk_is_full", room.map_or(Json::Null, |room| Json::Bool(room.is_full))),
        ("records", decimal(Some(records))),
    ])
}
