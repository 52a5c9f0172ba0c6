//! Empties the tiers of a store that is removed, as far as they are still its own.
//!
//! Must stay true: a tier is locked while it is compared and emptied. The lock may be shared with
//! processes of the same store. A store that recovers a tier locks it exclusively, so none does so
//! meanwhile; a store that has done so before has begun another epoch. Without a meta segment there
//! is nothing to compare the epoch with, so the lock is exclusive then. If the first tier stays,
//! the tiers behind it stay, too.

use std::path::Path;

use cairn_core::{Error, MediaCheck, Memory, Microfs, Superblock};
use cairn_platform::checksum;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::Errno;

use crate::directory::{Directory, StoreError, StoreResult};
use crate::media::media_file::MediaFile;
use crate::media::medium::{self, MediumKind};
use crate::memory::segment::MetaSegment;
use crate::store::tiers::{self, TierPlace};

use super::Names;

const RECOVERED: &str = "another store has recovered it";
const BEHIND: &str = "it stays with the tier that has its metadata";

/// A tier that was not emptied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftTier {
    /// Kind of its medium.
    pub kind: MediumKind,
    /// Reason and place.
    pub error: StoreError,
}

/// Locks of the tiers of a store. While they are held, no other store can recover those tiers.
#[derive(Default, Debug)]
pub struct TierLocks(Vec<(String, Vec<Descriptor>)>);

impl TierLocks {
    /// Locks those tiers of the namespace `name` that can be locked.
    pub(crate) fn take(&mut self, directory: &Directory, name: &str) {
        let names = Names::new(directory, name);
        let places = names.and_then(|names| tiers::read(directory, &names.tiers));
        let locks = places.unwrap_or_default().into_iter().flat_map(|place| match place {
            TierPlace::Ram => Vec::new(),
            TierPlace::Medium { path, identity, .. } => medium::lock_beside(&path, &identity),
        });
        self.0.push((name.to_owned(), locks.collect()));
    }

    /// Takes out the locks of one namespace.
    pub(crate) fn of(&mut self, name: &str) -> Vec<Descriptor> {
        let at = self.0.iter().position(|(locked, _)| locked == name);
        at.map(|at| self.0.swap_remove(at).1).unwrap_or_default()
    }
}

/// Empties the tiers of the namespace `name`, whose locks the caller passes. Returns the tiers that
/// stay.
pub(crate) fn empty(
    directory: &Directory,
    name: &str,
    locks: Vec<Descriptor>,
) -> StoreResult<Vec<LeftTier>> {
    empty_tiers(directory, &Names::new(directory, name)?, locks, true)
}

pub(super) fn empty_tiers(
    directory: &Directory,
    names: &Names,
    locks: Vec<Descriptor>,
    is_of_dead: bool,
) -> StoreResult<Vec<LeftTier>> {
    // A damaged list proves nothing to be ours. An unfinished list names no file that was made
    // already.
    let places = tiers::read(directory, &names.tiers).unwrap_or_default();
    let memory = MetaSegment::open(directory, &names.meta).ok();
    let geometry =
        memory.as_ref().and_then(|memory| Microfs::geometry_in(memory, checksum::crc32c).ok());
    let is_known = geometry.is_some();
    let has_metadata = geometry.is_none_or(|geometry| geometry.durability.is_some());
    let find = |sharing| places.iter().map(|place| Found::look(place, sharing)).collect();
    let mut found: Vec<Found> = match is_known {
        true => find(libc::LOCK_SH),
        false => Vec::new(),
    };
    drop(locks);
    let mut is_ours = is_known;
    if let (true, Some(memory), Some(Found::Ours(path, file))) =
        (has_metadata, &memory, found.first())
    {
        match was_recovered(memory, file) {
            Ok(false) => {}
            Ok(true) => {
                let error = StoreError::new("empty tier", path, Errno(libc::ESTALE));
                return Ok(vec![LeftTier { kind: file.kind(), error: error.advise(RECOVERED) }]);
            }
            Err(Error::Io) => {
                let error = StoreError::new("empty tier", path, Error::Io);
                found[0] = Found::Failed(file.kind(), error);
            }
            Err(_) => is_ours = false,
        }
    }
    if !is_ours {
        // Our own shared locks would be in the way.
        drop(found);
        found = find(libc::LOCK_EX);
    }
    let stays = has_metadata && matches!(found.first(), Some(Found::Failed(..)));
    let mut left = Vec::new();
    for found in found {
        match found {
            Found::Nothing => {}
            Found::Failed(kind, error) => left.push(LeftTier { kind, error }),
            Found::Ours(path, file) if stays => {
                let error = StoreError::new("empty tier", path, Errno(libc::ECANCELED));
                left.push(LeftTier { kind: file.kind(), error: error.advise(BEHIND) });
            }
            Found::Ours(path, file) => file.remove_from(path)?,
            // Nothing was at this path when the dead creator had written the list.
            Found::Begun(path) if !is_known && is_of_dead => medium::remove_file(path)?,
            Found::Begun(_) => {}
        }
    }
    Ok(left)
}

/// Whether another store has recovered the media of this memory. Errors: nobody can tell; `Io`.
fn was_recovered(memory: &dyn Memory, file: &MediaFile) -> cairn_core::Result<bool> {
    let superblock = Superblock::read(file, checksum::crc32c)?;
    MediaCheck::new(memory, superblock, checksum::crc32c).was_recovered(file)
}

/// What is at the place of a tier.
enum Found<'a> {
    /// Nothing outside the store that is ours.
    Nothing,
    /// Unknown.
    Failed(MediumKind, StoreError),
    /// Our tier.
    Ours(&'a Path, Box<MediaFile>),
    /// A file of which only the name was made.
    Begun(&'a Path),
}

impl Found<'_> {
    fn look(place: &TierPlace, sharing: i32) -> Found<'_> {
        let TierPlace::Medium { kind, path, identity } = place else { return Found::Nothing };
        match MediaFile::open_own(path, identity, sharing) {
            Ok(Some(file)) => Found::Ours(path, Box::new(file)),
            Ok(None) => Found::Nothing,
            Err(error)
                if !kind.is_device() && error.errno == libc::EINVAL && medium::is_begun(path) =>
            {
                Found::Begun(path)
            }
            // Nothing, or something that is not a tier.
            Err(error)
                if !kind.is_device() && matches!(error.errno, libc::ENOENT | libc::EINVAL) =>
            {
                Found::Nothing
            }
            Err(error) => Found::Failed(*kind, error),
        }
    }
}
