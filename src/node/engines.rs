//! The engines of a data directory, as consensus opens and replaces them.

use std::{path::Path, sync::Arc};

use crate::records::keys::StoreKey;
use crate::store::{
    directory::{EngineDirectory, EngineKind},
    engine::{Engine, EngineError},
    records::{META_MARK, OpenEngine},
};

/// The directory `store/`.
pub(super) struct Engines {
    directory: EngineDirectory,
}

impl Engines {
    pub fn new(data_dir: &Path, kind: EngineKind) -> Self {
        Self { directory: EngineDirectory::new(data_dir.join("store"), kind) }
    }
}

impl OpenEngine for Engines {
    fn open(&self) -> Result<Arc<dyn Engine>, EngineError> {
        // The mark is written last: an engine without it was loaded half, or is new.
        let whole = StoreKey::Meta(META_MARK.into()).encode();
        let opened = self.directory.open(&whole)?;
        for discarded in &opened.discarded {
            tracing::warn!(?discarded, "an engine of the store was discarded; it is rebuilt from snapshot and log");
        }
        Ok(opened.engine)
    }

    fn fresh(&self) -> Result<Arc<dyn Engine>, EngineError> {
        self.directory.open_next()
    }

    fn adopt(&self) -> Result<(), EngineError> {
        // The newest whole generation is the one in use: nothing more to be made durable.
        Ok(())
    }
}
