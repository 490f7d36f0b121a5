//! The keys of a node: those from outside, and by them those of tenants, opened and remembered for a while.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{
    Field, SealError,
    cipher::{Cipher, Holder, Kind, Subject},
    key::Key,
    key_file::{KeyFile, KeyFileError, KeySource},
    noted::{Noted, NotedError},
};
use crate::{
    disk::Disk,
    id::{ClusterId, LineageId, Tenant},
    limits,
    records::{
        command::{Command, Init, TenantOpened, Wrapped},
        rekey::{Rewrapped, SealingEnabled},
        sealing::{DataKey, OuterKey, RingEntry, SealedInit, SealedTenantOpened},
        state::{Globals, State},
    },
};

/// Why a node can't start with the keys it was given.
#[derive(Debug, thiserror::Error)]
pub enum KeychainError {
    /// The keys can't be read.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// They are not those of the node's cluster.
    #[error(transparent)]
    Noted(#[from] NotedError),
}

/// Where what a cluster wants is written down, and what stands there.
struct Notes {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    written: Mutex<Option<Noted>>,
}

/// The keys of a node.
pub struct Keychain {
    source: Option<KeySource>,
    outer: ArcSwap<KeyFile>,
    notes: Option<Notes>,
    null: Arc<Cipher>,
    ciphers: Mutex<HashMap<Option<Tenant>, Arc<Cipher>>>,
    downstream: Mutex<Option<Arc<Key>>>,
    unreadable: Arc<AtomicU64>,
}

impl Default for Keychain {
    /// No keys: what is sealed stays shut, and nothing new is sealed.
    fn default() -> Self {
        Self::of(KeyFile::default())
    }
}

impl Keychain {
    /// These keys, of which nothing is written down.
    pub fn of(keys: KeyFile) -> Self {
        Self {
            source: None,
            outer: ArcSwap::from_pointee(keys),
            notes: None,
            null: Arc::new(Cipher::null()),
            ciphers: Mutex::default(),
            downstream: Mutex::default(),
            unreadable: Arc::default(),
        }
    }

    /// The keys of a node that is about to start, judged by what it has written down. Changes nothing.
    ///
    /// # Errors
    /// [`KeychainError`]: the keys can't be read, one is missing, or one is another.
    pub fn read(source: Option<KeySource>, disk: Arc<dyn Disk>, dir: PathBuf) -> Result<Self, KeychainError> {
        let keys = source.as_ref().map(KeyFile::read).transpose()?.unwrap_or_default();
        let written = Noted::read(&*disk, &dir)?;
        if let Some(noted) = &written {
            noted.judge(&keys)?;
        }
        let notes = Notes { disk, dir, written: Mutex::new(written) };
        Ok(Self { source, notes: Some(notes), ..Self::of(keys) })
    }

    /// The same keys, of which nothing is written down.
    pub fn without_notes(&self) -> Self {
        Self::of((**self.outer.load()).clone())
    }

    /// Reads the keys again. Takes as long as a command takes. What can't be read leaves those before in force.
    pub fn read_again(&self) {
        let Some(source) = &self.source else { return };
        match KeyFile::read(source) {
            Ok(keys) => self.outer.store(Arc::new(keys)),
            Err(error) => tracing::error!(%error, "the sealing keys stay those read before"),
        }
    }

    /// Whether there are any.
    pub fn has_keys(&self) -> bool {
        self.outer.load().highest().is_some()
    }

    /// Fields that did not open since the start.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Whether this node can open what the cluster has sealed. Writes down which keys that takes, before they are used.
    ///
    /// # Errors
    /// [`SealError`]: a key is missing or another one, or can't be written down.
    pub fn unlock(&self, globals: &Globals, sealing: &crate::records::sealing::Sealing) -> Result<(), SealError> {
        let Some(formed) = &globals.formed else { return Ok(()) };
        self.judged(&Noted::of(formed.lineage_id, sealing))
    }

    fn judged(&self, wanted: &Noted) -> Result<(), SealError> {
        match wanted.judge(&self.outer.load()) {
            Ok(()) => {}
            Err(NotedError::Missing { id, .. }) => return Err(SealError::OuterMissing { id }),
            Err(NotedError::Differs { id }) => return Err(SealError::OuterDiffers { id }),
            Err(error) => return Err(error.into()),
        }
        let Some(notes) = &self.notes else { return Ok(()) };
        let mut written = notes.written.lock();
        if written.as_ref() != Some(wanted) {
            wanted.write(&*notes.disk, &notes.dir).map_err(NotedError::Disk)?;
            *written = Some(wanted.clone());
        }
        Ok(())
    }

    /// The cipher of a tenant, or of the cluster: the null cipher where its fields are not sealed.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand.
    pub fn cipher(&self, state: &impl State, tenant: Option<&Tenant>) -> Result<Arc<Cipher>, SealError> {
        let table = state.key_table();
        if table.sealing.is_none() {
            return Ok(Arc::clone(&self.null));
        }
        let tenant = tenant.cloned();
        // Never the null cipher instead: what is sealed was so from the first command on.
        let keys = table.data.get(&tenant).ok_or(SealError::Absent("data"))?;
        let known = self.ciphers.lock().get(&tenant).map(Arc::clone);
        if let Some(known) =
            known.as_ref().filter(|known| known.is_of(keys.current, keys.keys.iter().map(|key| key.id)))
        {
            return Ok(Arc::clone(known));
        }
        let (holder, root) = self.root(state, tenant.as_ref())?;
        let mut opened = Vec::with_capacity(keys.keys.len());
        for data in keys.keys.iter().filter(|data| data.id != 0) {
            opened.push((data.id, holder.unwrap(Kind::Data(data.id), &data.key, &root)?));
        }
        let takes_clear = keys.keys.iter().any(|data| data.id == 0);
        if let Some(known) = known {
            // Whoever holds it goes on with the keys of now.
            known.replace(keys.current, opened, takes_clear);
            return Ok(known);
        }
        let unreadable = Arc::clone(&self.unreadable);
        let cipher = Arc::new(Cipher::new(holder.lineage_id, tenant.clone(), keys.current, [], unreadable));
        cipher.replace(keys.current, opened, takes_clear);
        let mut ciphers = self.ciphers.lock();
        if ciphers.len() >= limits::CIPHERS_KEPT_MAX {
            // Dropped, and wiped with the last call that uses them.
            ciphers.clear();
        }
        ciphers.insert(tenant, Arc::clone(&cipher));
        Ok(cipher)
    }

    /// The index key of a tenant; none where it stands in the state as it is.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand.
    pub fn index_key(&self, state: &impl State, tenant: &Tenant, wrapped: &Wrapped) -> Result<Option<Key>, SealError> {
        if wrapped.wrapping_id == 0 {
            return Ok(None);
        }
        let (holder, root) = self.root(state, Some(tenant))?;
        holder.unwrap(Kind::Index, wrapped, &root).map(Some)
    }

    /// The secret behind downstream keys; none where it stands in the state as it is.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand.
    pub fn downstream(&self, state: &impl State, wrapped: &Wrapped) -> Result<Option<Arc<Key>>, SealError> {
        if wrapped.wrapping_id == 0 {
            return Ok(None);
        }
        if let Some(known) = &*self.downstream.lock() {
            return Ok(Some(Arc::clone(known)));
        }
        let (holder, root) = self.root(state, None)?;
        let secret = Arc::new(holder.unwrap(Kind::Downstream, wrapped, &root)?);
        *self.downstream.lock() = Some(Arc::clone(&secret));
        Ok(Some(secret))
    }

    fn root<'a>(&self, state: &impl State, tenant: Option<&'a Tenant>) -> Result<(Holder<'a>, Key), SealError> {
        let table = state.key_table();
        let sealing = table.sealing.as_ref().ok_or(SealError::Absent("key-encryption"))?;
        self.unlock(state.globals(), sealing)?;
        let lineage_id = state.globals().formed.as_ref().map(|formed| formed.lineage_id).unwrap_or_default();
        let entry = table.ring.get(&tenant.cloned()).and_then(|entry| entry.root.as_ref());
        let wrapped = entry.ok_or(SealError::Absent("root"))?;
        let keys = self.outer.load();
        let outer = keys.key(wrapped.wrapping_id).ok_or(SealError::OuterMissing { id: wrapped.wrapping_id })?;
        let holder = Holder { lineage_id, tenant };
        Ok((holder, holder.unwrap(Kind::Root, wrapped, outer)?))
    }

    /// Forgets the keys of a tenant: whoever still holds its cipher opens nothing more with it.
    pub fn forget(&self, tenant: &Tenant) {
        if let Some(cipher) = self.ciphers.lock().remove(&Some(tenant.clone())) {
            cipher.destroy();
        }
    }

    /// Which key-encryption keys this node has: their ids, and what tells them apart.
    pub fn held(&self) -> Vec<OuterKey> {
        let keys = self.outer.load();
        let held = keys.ids().filter_map(|id| Some(OuterKey { id, check: keys.key(id)?.check() }));
        held.collect()
    }

    /// Root keys that another key than the current one wraps, at most so many, wrapped by the current one.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand.
    pub fn rewrapped(&self, state: &impl State, max: usize) -> Result<Vec<Rewrapped>, SealError> {
        let table = state.key_table();
        let Some(sealing) = table.sealing.clone() else { return Ok(Vec::new()) };
        let is_older = |entry: &RingEntry| entry.root.as_ref().is_some_and(|root| root.wrapping_id != sealing.current);
        let older = table.ring.iter().filter(|(_, entry)| is_older(entry)).take(max);
        let keys = self.outer.load();
        let outer = keys.key(sealing.current).ok_or(SealError::OuterMissing { id: sealing.current })?;
        let mut rewrapped = Vec::new();
        for (of, _) in older {
            let (holder, root) = self.root(state, of.as_ref())?;
            let root = holder.wrap(Kind::Root, &root, outer, sealing.current);
            rewrapped.push(Rewrapped { of: of.clone(), root });
        }
        Ok(rewrapped)
    }

    /// A new data key of a tenant (the cluster's own: none), under its root key.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand.
    pub fn next_data_key(&self, state: &impl State, of: Option<&Tenant>) -> Result<DataKey, SealError> {
        let known = state.key_table().data.get(&of.cloned()).ok_or(SealError::Absent("data"))?;
        let id = known.keys.iter().map(|key| key.id).max().unwrap_or(0) + 1;
        let (holder, root) = self.root(state, of)?;
        Ok(DataKey { id, key: holder.wrap(Kind::Data(id), &Key::draw(), &root, 1) })
    }

    /// The first use of a tenant: fresh keys, wrapped where the cluster is sealed.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand.
    pub fn opening(&self, state: &impl State, tenant: &Tenant) -> Result<Command, SealError> {
        // One that was opened before the cluster was sealed keeps its index key: names are hashed under it.
        let index = match state.tenant(tenant).filter(|opened| opened.index_key.wrapping_id == 0) {
            Some(opened) => Key::of(&opened.index_key.bytes.0).ok_or(SealError::NotAuthentic)?,
            None => Key::draw(),
        };
        let Some(sealing) = state.key_table().sealing.clone() else {
            let index_key =
                Wrapped { wrapping_id: 0, bytes: crate::records::codec::Blob(index.reveal().to_vec().into()) };
            return Ok(Command::TenantOpened(TenantOpened { tenant: tenant.clone(), index_key }));
        };
        self.unlock(state.globals(), &sealing)?;
        let lineage_id = state.globals().formed.as_ref().map(|formed| formed.lineage_id).unwrap_or_default();
        let holder = Holder { lineage_id, tenant: Some(tenant) };
        let fresh = self.fresh(holder, sealing.current)?;
        let index_key = holder.wrap(Kind::Index, &index, &fresh.root_key, 1);
        Ok(Command::SealedTenantOpened(Box::new(SealedTenantOpened {
            opened: TenantOpened { tenant: tenant.clone(), index_key },
            root: fresh.root,
            data_key: fresh.data_key,
        })))
    }

    /// What seals a cluster that was formed without keys, under this key. The secret behind downstream keys stays what it is.
    ///
    /// # Errors
    /// [`SealError`] where keys are not at hand, or can't be written down.
    pub fn enabling(&self, state: &impl State, outer: OuterKey, actor: &str) -> Result<SealingEnabled, SealError> {
        let formed = state.globals().formed.as_ref().ok_or(SealError::Absent("downstream"))?;
        let lineage_id = formed.lineage_id;
        self.judged(&Noted { lineage_id, current: outer.id, keys: vec![outer] })?;
        let holder = Holder { lineage_id, tenant: None };
        let fresh = self.fresh(holder, outer.id)?;
        let secret = Key::of(&formed.downstream_secret.bytes.0).ok_or(SealError::NotAuthentic)?;
        let detail = format!("{{\"key\":{}}}", outer.id);
        let seal = |field, text: &str| fresh.cipher.seal(field, Subject::Audit, text.as_bytes().to_vec());
        Ok(SealingEnabled {
            outer,
            downstream_secret: holder.wrap(Kind::Downstream, &secret, &fresh.root_key, 1),
            actor: seal(Field::AuditActor, actor),
            detail: seal(Field::AuditDetail, &detail),
            root: fresh.root,
            data_key: fresh.data_key,
        })
    }

    fn fresh(&self, holder: Holder<'_>, outer_id: u32) -> Result<Fresh, SealError> {
        let keys = self.outer.load();
        let outer = keys.key(outer_id).ok_or(SealError::OuterMissing { id: outer_id })?;
        let (root_key, data) = (Key::draw(), Key::draw());
        let root = holder.wrap(Kind::Root, &root_key, outer, outer_id);
        let data_key = holder.wrap(Kind::Data(1), &data, &root_key, 1);
        let unreadable = Arc::clone(&self.unreadable);
        let cipher = Cipher::new(holder.lineage_id, holder.tenant.cloned(), 1, [(1, data)], unreadable);
        Ok(Fresh { root_key, root, data_key, cipher })
    }

    /// The first command of a cluster: sealed where keys are at hand. `token`: the first token and its scope in clear, made
    /// under the secret that is drawn here.
    ///
    /// # Errors
    /// [`SealError`] where keys can't be written down.
    pub fn founding(
        &self,
        (lineage_id, cluster_id): (LineageId, ClusterId),
        init: Init,
        secret: &Key,
    ) -> Result<Command, SealError> {
        let init = Init { lineage_id, cluster_id, ..init };
        let outer = self.outer.load().highest().map(|(id, key)| OuterKey { id, check: key.check() });
        let Some(outer) = outer else { return Ok(Command::Init(Box::new(init))) };
        self.judged(&Noted { lineage_id, current: outer.id, keys: vec![outer] })?;
        let holder = Holder { lineage_id, tenant: None };
        let fresh = self.fresh(holder, outer.id)?;
        let downstream_secret = holder.wrap(Kind::Downstream, secret, &fresh.root_key, 1);
        let first_token = init.first_token.clone().map(|mut token| {
            let scope = fresh.cipher.seal(Field::TokenScope, Subject::Token(token.id), token.scope.bytes.0);
            token.scope = scope;
            token
        });
        let init = Init { downstream_secret, first_token, ..init };
        let (root, data_key) = (fresh.root, fresh.data_key);
        Ok(Command::SealedInit(Box::new(SealedInit { init, outer, root, data_key })))
    }
}

/// Keys that were just drawn.
struct Fresh {
    root_key: Key,
    root: Wrapped,
    data_key: Wrapped,
    cipher: Cipher,
}
