//! A store that is written anew, so that nothing is left of what was written over.

use super::{OpenEngine, Records, StoreError, put_off::Unrenewed};

impl Records {
    /// Has a fresh engine take the place of the present one, with its rows and nothing else: engines keep what was deleted, and
    /// what was written over, for a while. The present one's files go with its last reader.
    ///
    /// # Errors
    /// When the disk has no room, or an engine can't be made, read or written; the present one is then as it was, but for a write that failed: final.
    pub fn write_anew(&self, engines: &dyn OpenEngine) -> Result<(), StoreError> {
        self.have_room()?;
        self.flush()?;
        self.renew(engines).map_err(Unrenewed::into_error)
    }

    /// Whether rows of a tenant that is closed are still to be deleted.
    pub fn has_rows_to_delete(&self) -> bool {
        use crate::records::state::State;
        self.read().key_table().closings.values().any(|closing| closing.emptied.is_none())
    }
}
