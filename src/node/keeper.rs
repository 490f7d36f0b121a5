//! What whoever leads does about keys, step by step, from wherever an earlier leader has left off: it destroys those of tenants
//! that are closed, wraps root keys anew, gives keys to tenants that were opened before the cluster was sealed, and seals
//! anew what is sealed by older data keys, until one of these is used by nothing and goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    id::{NodeId, Tenant},
    json::Json,
    limits,
    raft::Consensus,
    records::{
        closing::TenantKeysDestroyed,
        command::{Command, RecordRef, Sealed},
        rekey::{DataKeyRemoved, RootsRewrapped},
        reseal::Resealed,
        state::{ChainHead, State},
    },
    refusal::Refusal,
    seal::{Field, Subject, resealing},
};

/// How far resealing has come for one holder of data keys, since this node leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The data key that seals.
    pub key_id: u32,
    /// Records looked at.
    pub done: u64,
    /// Of so many.
    pub of: u64,
}

/// The cluster's own is without tenant.
pub(super) type Of = Option<Tenant>;

/// Does it, on the node that leads.
pub(super) struct Keeper {
    consensus: Consensus,
    node_id: NodeId,
    progress: Mutex<BTreeMap<Of, Progress>>,
}

/// A look at everything that is sealed by one holder's data keys.
struct Pass {
    of: Of,
    current: u32,
    after: Option<RecordRef>,
    is_over_records: bool,
    /// Records of the last step.
    looked: u64,
    /// The next row of the audit chain.
    row: u64,
    /// Data keys by which something is still sealed that can't be sealed anew.
    used: BTreeSet<u32>,
    /// Something was changed while it was looked at: it has to be looked at again.
    is_left: bool,
}

impl Keeper {
    pub fn new(consensus: Consensus, node_id: NodeId) -> Arc<Self> {
        Arc::new(Self { consensus, node_id, progress: Mutex::default() })
    }

    /// How far resealing has come; nothing on a node that does not lead.
    pub fn progress(&self) -> BTreeMap<Of, Progress> {
        self.progress.lock().clone()
    }

    /// Keeps, whenever this node leads, for as long as it is polled.
    pub async fn keep(self: Arc<Self>) {
        let mut pass: Option<Pass> = None;
        let mut looked: BTreeMap<Of, (u32, Instant)> = BTreeMap::new();
        loop {
            tokio::time::sleep(Duration::from_millis(limits::KEYS_LOOKED_MS)).await;
            if !self.consensus.leads() || self.consensus.unlocked().is_err() {
                (pass, looked) = (None, BTreeMap::new());
                self.progress.lock().clear();
                continue;
            }
            if let Err(refusal) = self.step(&mut pass, &mut looked).await {
                tracing::warn!(%refusal, "keys could not be replaced yet");
                pass = None;
            }
        }
    }

    async fn step(&self, pass: &mut Option<Pass>, looked: &mut BTreeMap<Of, (u32, Instant)>) -> Result<(), Refusal> {
        self.destroy().await?;
        self.rewrap().await?;
        self.adopt().await?;
        if pass.is_none() {
            *pass = self.next_pass(looked);
        }
        // For a while: then the other duties are looked at again.
        let until = Instant::now() + Duration::from_millis(limits::KEYS_LOOKED_MS);
        while let Some(running) = pass {
            if self.reseal(running).await? {
                let again =
                    Duration::from_secs(if running.is_left { limits::RESEAL_LEFT_S } else { limits::RESEAL_AGAIN_S });
                looked.insert(running.of.clone(), (running.current, Instant::now() + again));
                self.remove_unused(running).await?;
                *pass = self.next_pass(looked);
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Who and what, as they stand in the cluster's chain.
    fn told(&self, detail: &Json) -> Result<(Sealed, Sealed), Refusal> {
        told(&self.consensus, &format!("node:{}", self.node_id), detail)
    }

    async fn propose(&self, command: Command) -> Result<(), Refusal> {
        self.consensus.propose(Arc::new(command)).await?.answer.map(|_| ())
    }

    async fn destroy(&self) -> Result<(), Refusal> {
        let due: Vec<Tenant> = {
            let records = self.consensus.records();
            let state = records.read();
            let closings = state.key_table().closings.iter();
            closings.filter(|(_, closing)| closing.destroyed.is_none()).map(|(tenant, _)| tenant.clone()).collect()
        };
        for tenant in due {
            let (actor, detail) = self.told(&Json::object([("tenant", tenant.as_str().into())]))?;
            let command = TenantKeysDestroyed { tenant, actor, detail };
            self.propose(Command::TenantKeysDestroyed(Box::new(command))).await?;
        }
        Ok(())
    }

    async fn rewrap(&self) -> Result<(), Refusal> {
        loop {
            let records = self.consensus.records();
            let roots = self.consensus.keys().rewrapped(&*records.read(), limits::REWRAPPED_MAX)?;
            if roots.is_empty() {
                return Ok(());
            }
            self.propose(Command::RootsRewrapped(RootsRewrapped { roots })).await?;
        }
    }

    /// Gives keys to tenants that were opened before the cluster was sealed: until then their calls are refused.
    async fn adopt(&self) -> Result<(), Refusal> {
        loop {
            let records = self.consensus.records();
            let openings = {
                let state = records.read();
                if state.key_table().enabled.is_none() {
                    return Ok(());
                }
                let bare = state.tenants().filter(|(_, opened)| !opened.closed && opened.index_key.wrapping_id == 0);
                let keys = self.consensus.keys();
                let openings = bare.take(limits::REWRAPPED_MAX).map(|(tenant, _)| keys.opening(&*state, tenant));
                openings.map(|opening| opening.map(Arc::new)).collect::<Result<Vec<_>, _>>()?
            };
            if openings.is_empty() {
                return Ok(());
            }
            for applied in self.consensus.propose_many(openings).await {
                applied?.answer?;
            }
        }
    }

    /// A look at whoever has older data keys, and was not looked at lately.
    fn next_pass(&self, looked: &BTreeMap<Of, (u32, Instant)>) -> Option<Pass> {
        let records = self.consensus.records();
        let state = records.read();
        let mut progress = self.progress.lock();
        let data = &state.key_table().data;
        progress.retain(|of, _| data.get(of).is_some_and(|keys| keys.keys.len() > 1));
        let now = Instant::now();
        let is_due = |of: &Of, current: u32| looked.get(of).is_none_or(|(seen, at)| *seen != current || *at <= now);
        let (of, keys) = data.iter().find(|(of, keys)| keys.keys.len() > 1 && is_due(of, keys.current))?;
        let records = of.as_ref().map_or(0, |tenant| state.counters(tenant, None).records);
        progress.insert(of.clone(), Progress { key_id: keys.current, done: 0, of: records });
        Some(Pass {
            of: of.clone(),
            current: keys.current,
            after: None,
            is_over_records: of.is_none(),
            looked: 0,
            row: 0,
            used: BTreeSet::new(),
            is_left: false,
        })
    }

    /// One step of a pass; true after its last.
    async fn reseal(&self, pass: &mut Pass) -> Result<bool, Refusal> {
        if !pass.is_over_records {
            let commands = self.look_at_records(pass)?;
            self.replace(pass, commands).await;
            if pass.is_over_records {
                let commands = self.look_at_tokens(pass)?;
                self.replace(pass, commands).await;
            }
            self.tell(pass);
            return Ok(false);
        }
        if pass.row == 0 && pass.of.is_none() {
            let commands = self.look_at_tokens(pass)?;
            self.replace(pass, commands).await;
        }
        Ok(self.look_at_rows(pass))
    }

    /// Told once it is done, and not before.
    fn tell(&self, pass: &Pass) {
        if let Some(progress) = self.progress.lock().get_mut(&pass.of) {
            progress.done += pass.looked;
            // Records come and go meanwhile.
            let is_over = pass.is_over_records && !pass.is_left;
            progress.of = if is_over { progress.done } else { progress.of.max(progress.done + 1) };
        }
    }

    async fn replace(&self, pass: &mut Pass, commands: Vec<Arc<Command>>) {
        if commands.is_empty() {
            return;
        }
        let answers = self.consensus.propose_many(commands).await;
        // What was changed meanwhile, or not answered, is looked at again.
        pass.is_left |= answers.iter().any(|applied| !matches!(applied, Ok(applied) if applied.answer.is_ok()));
    }

    fn look_at_records(&self, pass: &mut Pass) -> Result<Vec<Arc<Command>>, Refusal> {
        let records = self.consensus.records();
        let state = records.read();
        let Some(tenant) = &pass.of else { return Ok(Vec::new()) };
        let cipher = self.consensus.keys().cipher(&*state, pass.of.as_ref())?;
        let found = state.heads(tenant, None, pass.after.as_ref(), limits::RESEALED_STEP);
        let is_last = found.len() < limits::RESEALED_STEP;
        let (mut commands, mut bytes, mut looked) = (Vec::new(), 0, 0);
        for (record, head) in &found {
            match resealing::record(&*state, &cipher, record, head) {
                Ok(None) => {}
                Ok(Some(resealed)) => {
                    bytes += resealed.fields.iter().map(|one| one.field.len()).sum::<usize>();
                    commands.push(Arc::new(Command::Resealed(Box::new(Resealed::Record(resealed)))));
                }
                // Told where it is opened. It stays as it is, and so does its key.
                Err(_) => pass.is_left = true,
            }
            looked += 1;
            pass.after = Some(record.clone());
            if bytes >= limits::RESEALED_BYTES_MAX {
                break;
            }
        }
        pass.is_over_records = is_last && looked == found.len();
        pass.looked = looked as u64;
        Ok(commands)
    }

    fn look_at_tokens(&self, pass: &mut Pass) -> Result<Vec<Arc<Command>>, Refusal> {
        let records = self.consensus.records();
        let state = records.read();
        let cipher = self.consensus.keys().cipher(&*state, pass.of.as_ref())?;
        let mut commands = Vec::new();
        for token in state.tokens().filter(|token| token.tenant == pass.of) {
            match resealing::token(&cipher, token) {
                Ok(resealed) => commands
                    .extend(resealed.map(|resealed| Arc::new(Command::Resealed(Box::new(Resealed::Token(resealed)))))),
                Err(_) => pass.is_left = true,
            }
        }
        Ok(commands)
    }

    /// Rows of the audit chain hold what they held: their hashes are the chain. True after the last.
    fn look_at_rows(&self, pass: &mut Pass) -> bool {
        let records = self.consensus.records();
        let state = records.read();
        let chain: Option<ChainHead> = match &pass.of {
            Some(tenant) => state.tenant(tenant).map(|opened| opened.audit),
            None => state.globals().audit,
        };
        let Some(chain) = chain else { return true };
        let first = pass.row.max(chain.first_kept);
        let end = (chain.sequence + 1).min(first + limits::RESEALED_STEP as u64);
        for sequence in first..end {
            if let Some(row) = state.audit_row(pass.of.as_ref(), sequence) {
                pass.used.extend(row.actor.iter().chain(&row.detail).map(|field| field.key_id));
            }
        }
        pass.row = end;
        end > chain.sequence
    }

    async fn remove_unused(&self, pass: &Pass) -> Result<(), Refusal> {
        if pass.is_left {
            return Ok(());
        }
        let unused: Vec<u32> = {
            let records = self.consensus.records();
            let state = records.read();
            let Some(keys) = state.key_table().data.get(&pass.of) else { return Ok(()) };
            // Another key was added meanwhile: the look was at an earlier one.
            if keys.current != pass.current {
                return Ok(());
            }
            let others = keys.keys.iter().map(|key| key.id).filter(|id| *id != keys.current);
            others.filter(|id| !pass.used.contains(id)).collect()
        };
        for id in unused {
            let tenant = pass.of.as_ref().map_or(Json::Null, |tenant| tenant.as_str().into());
            let (actor, detail) =
                self.told(&Json::object([("tenant", tenant), ("data_key", super::keys::number(id))]))?;
            self.propose(Command::DataKeyRemoved(DataKeyRemoved { of: pass.of.clone(), id, actor, detail })).await?;
        }
        Ok(())
    }
}

/// Who and what, sealed by the cluster's key, as they stand in its chain.
pub(super) fn told(consensus: &Consensus, actor: &str, detail: &Json) -> Result<(Sealed, Sealed), Refusal> {
    let cipher = consensus.keys().cipher(&*consensus.records().read(), None)?;
    let actor = cipher.seal(Field::AuditActor, Subject::Audit, actor.as_bytes().to_vec());
    Ok((actor, cipher.seal(Field::AuditDetail, Subject::Audit, detail.to_text().into_bytes())))
}
