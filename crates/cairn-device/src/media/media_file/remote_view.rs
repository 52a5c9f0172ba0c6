//! A namespace on a new connection, as the core reads a tier: before anything else uses the
//! connection, the core checks that the namespace is still the one it knew.
//!
//! Does not decide what is checked.

use std::sync::{Mutex, OnceLock, PoisonError};

use cairn_core::{Error, Media, Result};
use cairn_nvme as nvme;
use cairn_nvme::shared::View;

use super::pages::error_of;

struct RemoteView<'a, 'connection> {
    view: Mutex<&'a mut View<'connection>>,
    bytes: u64,
    /// Why a read failed.
    failure: OnceLock<nvme::Error>,
}

/// Whether `check` finds the namespace as it was known. Errors: it could not be read.
pub(super) fn is_known(
    view: &mut View<'_>,
    check: impl FnOnce(&dyn Media) -> Result<()>,
) -> nvme::Result<bool> {
    let bytes = view.bytes();
    let media = RemoteView { view: Mutex::new(view), bytes, failure: OnceLock::new() };
    match (check(&media), media.failure.into_inner()) {
        (Ok(()), _) => Ok(true),
        (Err(_), Some(failure)) => Err(failure),
        (Err(_), None) => Ok(false),
    }
}

impl Media for RemoteView<'_, '_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(target.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(Error::Corrupt { what: "range outside its tier" });
        }
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.read(offset, target).map_err(|error| {
            let _ = self.failure.set(error);
            error_of(error)
        })
    }

    fn write(&self, _offset: u64, _source: &[u8]) -> Result<()> {
        Err(Error::Invalid)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}
