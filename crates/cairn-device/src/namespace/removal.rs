//! The tiers of a store that is removed: emptied, as far as they are still its own.
//!
//! Must stay true: while a tier is compared and emptied it is locked, if only beside processes of
//! the same store. Who recovers one has it for itself, so nobody does meanwhile; and who has done
//! so before has begun another epoch. Without a meta segment there is nothing to compare that with:
//! then nobody else may have the tier. Those behind the first one stay where it stays.

use std::path::Path;

use cairn_core::{Error, MediaCheck, Memory, Microfs, Superblock};

use crate::checksum;
use crate::descriptor::Descriptor;
use crate::directory::{Directory, StoreError, StoreResult};
use crate::label::{Identity, Label, Wrong};
use crate::media_file::MediaFile;
use crate::medium::{self, Access, MediumKind};
use crate::segment::MetaSegment;
use crate::sys::Errno;
use crate::tiers::{self, TierPlace};

use super::Names;

const RECOVERED: &str = "another store has recovered it";
const BEHIND: &str = "it stays with the tier that has its metadata";

/// A tier that was not emptied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftTier {
    /// What it is.
    pub kind: MediumKind,
    /// Why, and where it is.
    pub error: StoreError,
}

/// Locks of the tiers of a store: as long as they are there no other store can recover them.
#[derive(Default, Debug)]
pub struct TierLocks(Vec<(String, Vec<Descriptor>)>);

impl TierLocks {
    /// Locks those tiers of the namespace `name` that can be.
    pub(crate) fn take(&mut self, directory: &Directory, name: &str) {
        let names = Names::new(directory, name);
        let places = names.and_then(|names| tiers::read(directory, &names.tiers));
        let locks = places.unwrap_or_default().into_iter().flat_map(|place| match place {
            TierPlace::Ram => Vec::new(),
            TierPlace::Medium { path, identity, .. } => medium::lock_beside(&path, &identity),
        });
        self.0.push((name.to_owned(), locks.collect()));
    }

    /// Those of one namespace.
    pub(crate) fn of(&mut self, name: &str) -> Vec<Descriptor> {
        let at = self.0.iter().position(|(locked, _)| locked == name);
        at.map(|at| self.0.swap_remove(at).1).unwrap_or_default()
    }
}

/// Empties the tiers of the namespace `name`, for which the caller has such locks; those that stay.
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
    // Of a damaged list nothing is known to be ours. One that was not finished named no file yet
    // that was made.
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
        // Locks of our own are in the way.
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
            // Nothing stood there when whoever died had written the list.
            Found::Begun(path) if !is_known && is_of_dead => medium::remove_file(path)?,
            Found::Begun(_) => {}
        }
    }
    Ok(left)
}

/// Whether another store has recovered the media that go with this memory. Errors: nobody can tell;
/// `Io`.
fn was_recovered(memory: &dyn Memory, file: &MediaFile) -> cairn_core::Result<bool> {
    let superblock = Superblock::read(file, checksum::crc32c)?;
    MediaCheck::new(memory, superblock, checksum::crc32c).was_recovered(file)
}

/// What stands where a tier was made.
enum Found<'a> {
    /// Nothing outside the store that is ours.
    Nothing,
    /// Nobody can tell.
    Failed(MediumKind, StoreError),
    /// Our tier.
    Ours(&'a Path, Box<MediaFile>),
    /// A file of which only the name was made.
    Begun(&'a Path),
}

impl Found<'_> {
    fn look(place: &TierPlace, sharing: i32) -> Found<'_> {
        let TierPlace::Medium { kind, path, identity } = place else { return Found::Nothing };
        match open(path, identity, sharing) {
            Ok(Some(file)) => Found::Ours(path, Box::new(file)),
            Ok(None) => Found::Nothing,
            Err(error)
                if !kind.is_device() && error.errno == libc::EINVAL && medium::is_begun(path) =>
            {
                Found::Begun(path)
            }
            // There is none, or something that is no tier.
            Err(error)
                if !kind.is_device() && matches!(error.errno, libc::ENOENT | libc::EINVAL) =>
            {
                Found::Nothing
            }
            Err(error) => Found::Failed(*kind, error),
        }
    }
}

/// Opens what is at `path` if it is that tier. What is not is not claimed.
pub(crate) fn open(
    path: &Path,
    identity: &Identity,
    sharing: i32,
) -> StoreResult<Option<MediaFile>> {
    if open_unclaimed(path, identity, sharing, Access::Read)?.is_none() {
        return Ok(None);
    }
    let opened = open_unclaimed(path, identity, sharing, Access::ReadWrite)?;
    let claim = |(file, label): (MediaFile, Label)| {
        file.claim(path, &label, false)?;
        Ok(file)
    };
    opened.map(claim).transpose()
}

fn open_unclaimed(
    path: &Path,
    identity: &Identity,
    sharing: i32,
    access: Access,
) -> StoreResult<Option<(MediaFile, Label)>> {
    let (file, label) = MediaFile::open_unclaimed(path, sharing, access)?;
    match label {
        Ok(label) if label.identity == *identity => Ok(Some((file, label))),
        Ok(_) | Err(Wrong::Missing) => Ok(None),
        Err(wrong) => Err(medium::refused(path, wrong.describe())),
    }
}
