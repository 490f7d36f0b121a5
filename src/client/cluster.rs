//! Which cluster answers. Every answer carries `semel-cluster-id`; a restore draws a new one. A client that didn't
//! notice would take a day-old state for the truth, so it believes nothing of another cluster until it is told to.

use std::sync::{Mutex, PoisonError};

use tonic::metadata::MetadataMap;

use super::error::Error;
use crate::id::ClusterId;

/// The metadata entry that names the cluster: 32 hex digits.
pub(super) const CLUSTER_ID_METADATA: &str = "semel-cluster-id";

/// The cluster that this client knows, once it has met one.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    known: Mutex<Option<ClusterId>>,
}

impl Cluster {
    pub(super) fn new(known: Option<ClusterId>) -> Self {
        Self { known: Mutex::new(known) }
    }

    /// The cluster that answers are taken from.
    pub(super) fn known(&self) -> Option<ClusterId> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes answers from this cluster from now on, and from no other.
    pub(super) fn trust(&self, id: ClusterId) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    /// Judges an answer by its metadata. The first cluster met is the known one; an answer that names none comes from
    /// something in between, which has no state to be wrong about.
    pub(super) fn check(&self, metadata: &MetadataMap) -> Result<(), Error> {
        let named = metadata.get(CLUSTER_ID_METADATA).and_then(|id| id.to_str().ok()).and_then(ClusterId::parse);
        let Some(found) = named else { return Ok(()) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match *known.get_or_insert(found) {
            id if id == found => Ok(()),
            id => Err(Error::ClusterChanged { known: id, found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(CLUSTER_ID_METADATA, id.parse().unwrap());
        metadata
    }

    #[test]
    fn another_cluster_is_refused_until_it_is_trusted() {
        let (first, second) = ("0".repeat(32), "1".repeat(32));
        let cluster = Cluster::default();
        assert!(cluster.check(&named(&first)).is_ok());
        assert!(cluster.check(&MetadataMap::new()).is_ok());
        assert!(matches!(cluster.check(&named(&second)), Err(Error::ClusterChanged { .. })));
        assert!(cluster.check(&named(&first)).is_ok(), "the known one stays the known one");
        cluster.trust(ClusterId([0x11; 16]));
        assert!(cluster.check(&named(&second)).is_ok());
        assert!(cluster.check(&named(&first)).is_err());
    }
}
