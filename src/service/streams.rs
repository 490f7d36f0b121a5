//! Which tenant has how many streams open on this node: sessions and watches last, and one tenant's must not be all there
//! can be.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    auth::{Caller, Scope},
    id::Tenant,
    limits,
    refusal::{Code, Refusal},
};

/// The open streams of a node.
#[derive(Default)]
pub struct Streams {
    open: Mutex<HashMap<Tenant, usize>>,
}

/// A stream's place, until it is dropped.
pub struct StreamPlace {
    tenant: Tenant,
    streams: Arc<Streams>,
}

impl Streams {
    /// A place for a stream of this caller. None is needed where its credential names no tenant: on an open node, and for
    /// the cluster itself.
    ///
    /// # Errors
    /// `rate_limited` where the tenant has too many.
    pub fn enter(self: &Arc<Self>, caller: &Caller) -> Result<Option<StreamPlace>, Refusal> {
        let Scope::Tenant(tenant) = caller.scope() else { return Ok(None) };
        let mut open = self.open.lock();
        let count = open.entry(tenant.clone()).or_default();
        if *count >= limits::TENANT_STREAMS_MAX {
            let detail = "too many sessions and watches of this tenant are open here; close some, or use another node";
            return Err(Refusal::new(Code::RateLimited, detail).retry_after_ms(limits::WAITERS_RETRY_AFTER_MS));
        }
        *count += 1;
        drop(open);
        Ok(Some(StreamPlace { tenant: tenant.clone(), streams: Arc::clone(self) }))
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        if let Some(count) = open.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Authenticator;

    fn caller(tenant: &str) -> Caller {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens.toml");
        let token = "0123456789abcdef";
        let text = format!("[[token]]\ntoken = \"{token}\"\ntenant = \"{tenant}\"\npermissions = [\"claim\"]\n");
        std::fs::write(&path, text).expect("it can be written");
        let head = [(http::header::AUTHORIZATION, format!("Bearer {token}").parse().expect("a value"))];
        let auth = Authenticator::token_file(&path).expect("a token file");
        auth.admit(&head.into_iter().collect(), &http::Extensions::default()).expect("it is in the file")
    }

    #[test]
    fn one_tenants_streams_leave_room_for_anothers() {
        let streams = Arc::<Streams>::default();
        let (acme, other) = (caller("acme"), caller("other"));
        let mut open: Vec<_> = (0..limits::TENANT_STREAMS_MAX).map(|_| streams.enter(&acme).expect("room")).collect();
        assert_eq!(streams.enter(&acme).err().expect("it is full").code, Code::RateLimited);
        let place = streams.enter(&other).expect("another tenant's are its own");
        open.pop();
        open.push(streams.enter(&acme).expect("a place was given back"));
        drop((open, place));
        assert!(streams.open.lock().is_empty());
        assert!(streams.enter(&Caller::open()).expect("nobody counts").is_none());
    }
}
