//! Builds replacements for damaged or missing files from copies in the persist directory. The
//! copies are compared while they are copied to a place in the store that no program sees.
//!
//! Must stay true: a file that cannot be built for its own reason is reported and affects no other
//! file. A copy that cannot be read at the moment does not count as damaged.

use cairn_agent::model::error::why;
use cairn_agent::persist::destination::Destination;
use cairn_agent::store::volume::Volume;
use cairn_job::file::extended::Extended;
use cairn_job::file::node::Kind;
use cairn_job::file::path::{FilePath, building_place};
use cairn_job::outside::manifest::{Copy, Manifest};
use std::fs::File;
use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::size::human;
use crate::store::local::{self, Expected};

/// Mode of a directory without an entry in the manifest.
const DIRECTORY_MODE: u32 = 0o755;

/// Why a file was not built.
#[derive(Debug)]
pub struct Obstacle {
    /// The reason, for a person.
    pub reason: String,
    /// Whether the copy is damaged or missing.
    pub is_damage: bool,
}

impl Obstacle {
    fn damage(reason: String) -> Obstacle {
        Obstacle { reason, is_damage: true }
    }

    fn passing(reason: String) -> Obstacle {
        Obstacle { reason, is_damage: false }
    }
}

/// Returns the path at which the replacement of `inner` is built.
pub fn place_of(inner: &FilePath) -> FilePath {
    building_place().append(inner)
}

/// Builds the file that `copy` describes for `inner`. `source` is the file in the persist
/// directory, and its full path. Errors: a failure that would hit other files, too.
pub fn build(
    destination: &Destination,
    (source, full_path): (cairn_agent::Result<File>, &Path),
    copy: &Copy,
    (volume, inner): (&Volume, &FilePath),
    advance: &mut dyn FnMut(u64),
) -> Result<std::result::Result<(), Obstacle>> {
    let shown = full_path.display();
    let expected = Expected { bytes: copy.bytes, crc32c: copy.crc32c };
    let target = place_of(inner);
    let built = source.map_err(Error::from).and_then(|file| {
        let (from, to) = ((file, full_path), (volume, &target));
        local::copy_in(from, None, to, Some(expected), &mut |bytes| {
            advance(bytes);
            Ok(())
        })
    });
    let source = match built {
        Ok(Some(_)) => return Ok(Ok(())),
        Ok(None) => return Ok(Err(Obstacle::damage(format!("{shown} is damaged, too")))),
        Err(Error::Agent(cairn_agent::Error::Store { source, .. }))
            if source == cairn_core::Error::NoSpace || source == cairn_core::Error::NoInodes =>
        {
            return Ok(Err(no_room(inner, "nothing more is free")));
        }
        Err(Error::Agent(cairn_agent::Error::File { source, .. }) | Error::File { source, .. })
            if destination.blames_one_file(&source) =>
        {
            source
        }
        Err(error) => return Err(error),
    };
    Ok(Err(match source.kind() {
        io::ErrorKind::NotFound => Obstacle::damage(format!("{shown} is missing")),
        _ => Obstacle::passing(format!("{shown} cannot be read: {}", why(&source))),
    }))
}

/// Checks that the store has space for files of these lengths. Errors: the space is unknown.
pub fn has_place(
    volume: &Volume,
    files: &[(&FilePath, u64)],
) -> Result<std::result::Result<(), Obstacle>> {
    let usage = volume.fs().usage().map_err(volume.error("measure", &FilePath::root()))?;
    let tiers = usage.total_blocks.iter().zip(&usage.used_blocks);
    let free: u64 = tiers.map(|(total, used)| total.saturating_sub(*used)).sum();
    let barred: u64 = usage.parts.iter().map(|part| u64::from(part.barred_blocks)).sum();
    let free = free.saturating_sub(barred);
    let needed: u64 = files.iter().map(|(_, bytes)| bytes.div_ceil(usage.hugeblock_bytes)).sum();
    let inodes = usage.inode_capacity.saturating_sub(usage.inodes);
    let Some((first, _)) = files.first() else { return Ok(Ok(())) };
    if needed > free {
        let [needed, free] = [needed, free].map(|blocks| human(blocks * usage.hugeblock_bytes));
        return Ok(Err(no_room(first, &format!("{needed} are needed, and {free} are free"))));
    }
    match files.len() as u64 > inodes {
        true => Ok(Err(no_room(first, "it can hold no more files"))),
        false => Ok(Ok(())),
    }
}

fn no_room(path: &FilePath, why: &str) -> Obstacle {
    Obstacle::passing(format!("the store has no room for a new copy of /{path}: {why}"))
}

/// Creates the directories above the place where `inner` is built, with the modes in `manifest`.
pub fn make_directories(volume: &Volume, inner: &FilePath, manifest: &Manifest) -> Result<()> {
    make_parents(volume, &place_of(inner), &|directory| {
        let inner = directory.strip_prefix(&building_place())?;
        let entry = manifest.files.get(&volume.outer_path(&inner))?;
        // The builder must be able to write into the directory.
        (entry.kind == Kind::Directory).then_some(entry.mode | 0o700)
    })
}

/// Creates the missing directories above `inner`, with the modes that `mode` returns.
pub fn make_parents(
    volume: &Volume,
    inner: &FilePath,
    mode: &dyn Fn(&FilePath) -> Option<u32>,
) -> Result<()> {
    let Some((parent, _)) = inner.split() else { return Ok(()) };
    let mut here = FilePath::root();
    for name in parent.components() {
        here = here.join(name);
        if volume.attributes(&here).is_err() {
            let mode = mode(&here).unwrap_or(DIRECTORY_MODE);
            local::make_directory(volume, &here, mode, &Extended::default())?;
        }
    }
    Ok(())
}
