//! Keys and the end of tenants, as operators ask for them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::keeper::{Keeper, Of, told};
use crate::{
    auth::Caller,
    entropy,
    http::{moment_text, operations::Shred},
    id::{NodeId, Position, Tenant, Uuid, hex},
    json::{Json, Number},
    limits,
    raft::{Consensus, Keeping},
    records::{
        answer::Applied,
        closing::{Closing, TenantClosed, TenantKeysDestroyed, is_closed},
        command::Command,
        rekey::{DataKeyAdded, KeyRotated},
        sealing::{KeyTable, OuterKey},
        state::State,
    },
    refusal::{Code, Refusal},
};

pub(super) fn number(value: impl Into<u64>) -> Json {
    Json::Number(Number::parse(&value.into().to_string()).expect("an integer is a JSON number"))
}

fn wrong_state(detail: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::new(Code::WrongState, detail)
}

fn of_json(of: &Of) -> Json {
    of.as_ref().map_or(Json::Null, |tenant| tenant.as_str().into())
}

/// Nodes by their ids, for people.
fn named(nodes: &[NodeId]) -> String {
    let ids: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    format!("{} {}", if ids.len() == 1 { "node" } else { "nodes" }, ids.join(", "))
}

/// What is done about keys, on this node.
#[derive(Clone)]
pub(super) struct Keys {
    consensus: Consensus,
    keeper: Arc<Keeper>,
}

impl Keys {
    pub fn new(consensus: Consensus, keeper: Arc<Keeper>) -> Self {
        Self { consensus, keeper }
    }

    /// A cluster that was formed or upgraded a moment ago is given time to find out what its members understand.
    async fn propose(&self, command: Command) -> Result<Applied, Refusal> {
        let until = Instant::now() + Duration::from_millis(limits::KEYS_TOLD_PATIENCE_MS);
        while !self.is_understood(&command) && Instant::now() < until {
            sleep(Duration::from_millis(limits::KEYS_TOLD_POLL_MS)).await;
        }
        let applied = self.consensus.propose(Arc::new(command)).await?;
        match applied.answer {
            Err(refusal) => Err(refusal),
            Ok(_) => Ok(applied),
        }
    }

    fn is_understood(&self, command: &Command) -> bool {
        let records = self.consensus.records();
        let formed = records.read().globals().formed.clone();
        formed.is_none_or(|formed| formed.feature_level >= command.feature_level())
    }

    /// Which keys there are, and what still hangs on older ones. Of the state as every acknowledged command has left it.
    pub async fn status(&self) -> Result<Json, Refusal> {
        self.consensus.read_barrier().await?;
        let members = self.consensus.keeping();
        let records = self.consensus.records();
        let state = records.read();
        let table = state.key_table();
        let bare = table.enabled.is_some()
            && state.tenants().any(|(_, opened)| !opened.closed && opened.index_key.wrapping_id == 0);
        let sealing = match &table.sealing {
            None => "off",
            Some(_) if bare || self.is_enabling(table) => "enabling",
            Some(_) => "on",
        };
        let wraps = |id: u32| {
            table.ring.values().filter(|entry| entry.root.as_ref().is_some_and(|root| root.wrapping_id == id)).count()
        };
        let current = table.sealing.as_ref().map(|sealing| sealing.current);
        let roots = table.ring.values().filter(|entry| entry.root.is_some()).count();
        let done = current.map_or(0, wraps);
        let rewrap = Json::object([("done", number(done as u64)), ("of", number(roots as u64))]);
        Ok(Json::object([
            ("sealing", sealing.into()),
            ("current", current.map_or(Json::Null, number)),
            ("keys", Json::Array(outer_keys(table, &members, wraps))),
            ("rewrap", rewrap),
            ("reseal", Json::Array(self.resealing(table))),
            ("scrub", Json::Array(members.iter().map(erased).collect())),
        ]))
    }

    /// Whether fields in clear are still looked for: those that can be sealed anew.
    fn is_enabling(&self, table: &KeyTable) -> bool {
        let progress = self.keeper.progress();
        let has_clear = |of: &Of| table.data.get(of).is_some_and(|keys| keys.keys.iter().any(|key| key.id == 0));
        table.enabled.is_some()
            && table.data.keys().any(|of| has_clear(of) && progress.get(of).is_none_or(|one| one.done < one.of))
    }

    /// Whose older data keys are still in use. What was looked at the leader knows.
    fn resealing(&self, table: &KeyTable) -> Vec<Json> {
        let progress = self.keeper.progress();
        let older = table.data.iter().filter(|(_, keys)| keys.keys.len() > 1);
        let shown = older.map(|(of, keys)| {
            let known = progress.get(of).filter(|one| one.key_id == keys.current);
            let count = |count: Option<u64>| count.map_or(Json::Null, number);
            let older = keys.keys.iter().map(|key| key.id).filter(|id| *id != keys.current).map(number);
            Json::object([
                ("tenant", of_json(of)),
                ("key_id", number(keys.current)),
                ("older", Json::Array(older.collect())),
                ("done", count(known.map(|one| one.done))),
                ("of", count(known.map(|one| one.of))),
            ])
        });
        shown.collect()
    }

    /// Another key wraps root keys from now on. Every member must have it: else one that leads next could open nothing.
    pub async fn rotate(&self, caller: &Caller, to: Option<u32>) -> Result<Json, Refusal> {
        self.consensus.read_barrier().await?;
        let outer = self.wanted(to)?;
        self.held_by_all(outer).await?;
        let detail = Json::object([("key", number(outer.id))]);
        let (actor, detail) = told(&self.consensus, caller.actor(None), &detail)?;
        let applied = self.propose(Command::KeyRotated(KeyRotated { outer, actor, detail })).await?;
        Ok(Json::object([("current", number(outer.id)), ("index", index(applied.index))]))
    }

    /// The key of this id, or the highest there is, if it is another than the current one.
    fn wanted(&self, to: Option<u32>) -> Result<OuterKey, Refusal> {
        let held = self.consensus.keys().held();
        let found = match to {
            Some(id) => held.iter().find(|key| key.id == id),
            None => held.last(),
        };
        let none = || {
            wrong_state(
                to.map_or("this node has no sealing key".into(), |id| format!("this node has no sealing key {id}")),
            )
        };
        let outer = *found.ok_or_else(none)?;
        let records = self.consensus.records();
        let state = records.read();
        let Some(sealing) = state.key_table().sealing.as_ref() else {
            return Err(wrong_state("the cluster is not sealed"));
        };
        if to.is_none() && sealing.current == outer.id {
            let detail = format!("sealing key {} is the newest, and in use already: draw another one first", outer.id);
            return Err(wrong_state(detail));
        }
        Ok(outer)
    }

    /// Refuses, naming nodes, unless every voter and learner has this key. A node that has just started is given time to
    /// hear the others.
    async fn held_by_all(&self, outer: OuterKey) -> Result<(), Refusal> {
        let until = Instant::now() + Duration::from_millis(limits::KEYS_TOLD_PATIENCE_MS);
        loop {
            match self.is_held_by_all(outer) {
                Err(_) if Instant::now() < until => sleep(Duration::from_millis(limits::KEYS_TOLD_POLL_MS)).await,
                said => return said,
            }
        }
    }

    fn is_held_by_all(&self, outer: OuterKey) -> Result<(), Refusal> {
        let members = self.consensus.keeping();
        let which = |is_so: &dyn Fn(&Keeping) -> bool| -> Vec<NodeId> {
            members.iter().filter(|member| is_so(member)).map(|member| member.node_id).collect()
        };
        let differs = which(&|member| member.keys.iter().any(|key| key.id == outer.id && key.check != outer.check));
        if !differs.is_empty() {
            return Err(wrong_state(format!("another key bears the id {} on {}", outer.id, named(&differs))));
        }
        let lacking = which(&|member| !member.keys.contains(&outer));
        if !lacking.is_empty() {
            let detail = format!("sealing key {} is missing, or not told of yet, on {}", outer.id, named(&lacking));
            return Err(wrong_state(detail));
        }
        match which(&|member| !member.is_reachable) {
            silent if silent.is_empty() => Ok(()),
            silent => Err(wrong_state(format!("whether {} still has it can't be asked", named(&silent)))),
        }
    }

    /// Seals a cluster that was formed without keys: what comes from now on is sealed, and what is there by and by.
    pub async fn enable(&self, caller: &Caller) -> Result<Json, Refusal> {
        self.consensus.read_barrier().await?;
        let held = self.consensus.keys().held();
        let none = || wrong_state("this node has no sealing key: name a key file in [seal] on every node");
        let outer = *held.last().ok_or_else(none)?;
        self.held_by_all(outer).await?;
        let enabling = {
            let records = self.consensus.records();
            let state = records.read();
            match &state.key_table().sealing {
                Some(_) => None,
                None => Some(self.consensus.keys().enabling(&*state, outer, caller.actor(None))?),
            }
        };
        let Some(enabling) = enabling else {
            let position = self.consensus.records().read().globals().position;
            return Ok(Json::object([("current", number(outer.id)), ("index", index(position))]));
        };
        let applied = self.propose(Command::SealingEnabled(Box::new(enabling))).await?;
        Ok(Json::object([("current", number(outer.id)), ("index", index(applied.index))]))
    }

    /// New data keys, of one tenant or of all and of the cluster. What is sealed by older ones is sealed anew by and by.
    pub async fn rotate_data(&self, caller: &Caller, tenant: Option<Tenant>) -> Result<Json, Refusal> {
        self.consensus.read_barrier().await?;
        let whose: Vec<Of> = {
            let records = self.consensus.records();
            let state = records.read();
            if state.key_table().sealing.is_none() {
                return Err(wrong_state("the cluster is not sealed"));
            }
            match tenant {
                Some(tenant) if is_closed(&*state, &tenant) => return Err(wrong_state("the tenant is closed")),
                Some(tenant) if state.tenant(&tenant).is_none() => return Err(never_opened()),
                Some(tenant) => vec![Some(tenant)],
                None => state.key_table().data.keys().cloned().collect(),
            }
        };
        let (mut added, mut last) = (0_u64, Position::default());
        for of in whose {
            let key = self.consensus.keys().next_data_key(&*self.consensus.records().read(), of.as_ref())?;
            let detail = Json::object([("tenant", of_json(&of)), ("data_key", number(key.id))]);
            let (actor, detail) = told(&self.consensus, caller.actor(None), &detail)?;
            let command = DataKeyAdded { of, key, keys_max: limits::DATA_KEYS_MAX, actor, detail };
            last = self.propose(Command::DataKeyAdded(command)).await?.index;
            added += 1;
        }
        Ok(Json::object([("data_keys", number(added)), ("index", index(last))]))
    }

    /// Closes a tenant for good and destroys its keys. What is left on the disks goes by and by.
    pub async fn shred(&self, caller: &Caller, asked: Shred) -> Result<Json, Refusal> {
        let Shred { tenant, reason, request_id, older_copies_stay } = asked;
        self.consensus.read_barrier().await?;
        let request_id = request_id.unwrap_or_else(|| Uuid(entropy::bytes()));
        let by = caller.actor(None);
        let name = || Json::String(tenant.as_str().to_owned());
        let detail = Json::object([("tenant", name()), ("reason", reason.as_str().into())]);
        let (actor, detail) = told(&self.consensus, by, &detail)?;
        let closed = TenantClosed { tenant: tenant.clone(), request_id, older_copies_stay, actor, detail };
        self.propose(Command::TenantClosed(Box::new(closed))).await?;
        let (actor, detail) = told(&self.consensus, by, &Json::object([("tenant", name())]))?;
        let destroyed = TenantKeysDestroyed { tenant: tenant.clone(), actor, detail };
        let destroyed = self.propose(Command::TenantKeysDestroyed(Box::new(destroyed))).await;
        if let Err(refusal) = destroyed {
            // It is closed, and whoever leads destroys its keys.
            tracing::warn!(%refusal, "a tenant is closed, and its keys are destroyed later");
        }
        self.tenant(&tenant)
    }

    /// How far the end of a tenant has come, on each node.
    pub async fn tenant_status(&self, tenant: Tenant) -> Result<Json, Refusal> {
        self.consensus.read_barrier().await?;
        self.tenant(&tenant)
    }

    fn tenant(&self, tenant: &Tenant) -> Result<Json, Refusal> {
        let members = self.consensus.keeping();
        let records = self.consensus.records();
        let state = records.read();
        let opened = state.tenant(tenant);
        let closing = state.key_table().closings.get(tenant).cloned();
        if opened.is_none() && !is_closed(&*state, tenant) {
            return Err(never_opened());
        }
        let is_shredded = closing.is_none() && is_closed(&*state, tenant);
        let standing = |member: &Keeping| match &closing {
            // A restore has brought nothing of it but its end.
            None if is_shredded => Standing::Scrubbed,
            None => Standing::Open,
            Some(closing) => Standing::of(closing, member),
        };
        let nodes = members.iter().map(|member| {
            let state = if member.is_reachable { standing(member).as_str() } else { "unreachable" };
            Json::object([("node_id", number(member.node_id)), ("state", state.into())])
        });
        let least = members.iter().map(standing).min().unwrap_or(Standing::Open);
        let moment = closing.as_ref().map(|closing| closing.closed);
        Ok(Json::object([
            ("tenant", tenant.as_str().into()),
            ("state", least.as_str().into()),
            ("closed_at", moment.map_or(Json::Null, |moment| Json::String(moment_text(moment.at)))),
            ("older_copies_stay", Json::Bool(closing.as_ref().is_some_and(|closing| closing.older_copies_stay))),
            ("records_left", number(state.counters(tenant, None).records)),
            ("nodes", Json::Array(nodes.collect())),
            ("index", index(state.globals().position)),
        ]))
    }
}

/// How far the end of a tenant has come on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It has not heard of it.
    Open,
    /// It takes nothing for it.
    Closed,
    /// It has no keys of it.
    KeysDestroyed,
    /// Nothing is left on its disk.
    Scrubbed,
}

impl Standing {
    fn of(closing: &Closing, member: &Keeping) -> Self {
        let has = |reached: Position, wanted: Option<Position>| wanted.is_some_and(|wanted| reached >= wanted);
        if has(member.erased, closing.emptied) {
            Standing::Scrubbed
        } else if has(member.position, closing.destroyed) {
            Standing::KeysDestroyed
        } else if has(member.position, Some(closing.closed.position)) {
            Standing::Closed
        } else {
            Standing::Open
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Standing::Open => "open",
            Standing::Closed => "closed",
            Standing::KeysDestroyed => "keys_destroyed",
            Standing::Scrubbed => "scrubbed",
        }
    }
}

fn never_opened() -> Refusal {
    Refusal::new(Code::NotFound, "no tenant of this name was ever opened")
}

fn index(position: Position) -> Json {
    Json::String(position.to_string())
}

fn erased(member: &Keeping) -> Json {
    Json::object([("node_id", number(member.node_id)), ("position", index(member.erased))])
}

/// Every key that the cluster wants, or that a member has.
fn outer_keys(table: &KeyTable, members: &[Keeping], wraps: impl Fn(u32) -> usize) -> Vec<Json> {
    let wanted: &[OuterKey] = table.sealing.as_ref().map_or(&[], |sealing| &sealing.keys);
    let mut known: BTreeMap<(u32, [u8; 8]), Vec<NodeId>> = BTreeMap::new();
    for key in wanted {
        known.entry((key.id, key.check)).or_default();
    }
    for member in members {
        for key in &member.keys {
            known.entry((key.id, key.check)).or_default().push(member.node_id);
        }
    }
    let current = table.sealing.as_ref().map(|sealing| sealing.current);
    let shown = known.into_iter().map(|((id, check), nodes)| {
        // Another key under the same id wraps nothing here.
        let is_wanted = wanted.contains(&OuterKey { id, check });
        let state = match is_wanted {
            true if current == Some(id) => "current",
            true => "retiring",
            false => "unused",
        };
        Json::object([
            ("id", number(id)),
            ("check", Json::String(hex(&check))),
            ("state", state.into()),
            ("wraps", number(if is_wanted { wraps(id) as u64 } else { 0 })),
            ("nodes", Json::Array(nodes.into_iter().map(number).collect())),
        ])
    });
    shown.collect()
}
