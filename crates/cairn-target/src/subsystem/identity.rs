//! Identity of a namespace: the NGUID by which hosts recognize it, and the start of the machine by
//! which they learn that written bytes may be lost.
//!
//! Invariant: a file or device keeps its identity when its target is started again, and under every
//! name. On another machine, where the same numbers denote other files, the identity differs.

use cairn_nvme::crypto::Hash;
use rustix::fs::OFlags;
use std::fs::{Metadata, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Identity of the machine. Either file may be missing, or be the same on machines made from one
/// image.
const MACHINE: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/hostname"];
/// Prefix of the hashed bytes. It keeps others from computing the same hash, or from finding out
/// the machine's identifiers.
const PURPOSE: &[u8] = b"cairn namespace";

/// Differs after every start of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Directory whose contents are gone after a restart of the machine.
const NOTES: &str = "/dev/shm";
const STARTED: &[u8] = b"cairn target's start";

/// Identifies the start of the machine for the namespace `guid`. All bytes written during one start
/// are there, whichever target wrote them, unless a target has lost some. If the kernel does not
/// identify the start, every target gets one of its own.
pub(crate) fn start(guid: &[u8; 16]) -> Result<[u8; 16]> {
    let Some(boot) = std::fs::read(BOOT).ok().filter(|boot| !boot.is_empty()) else {
        return new();
    };
    let loss = std::fs::read(note_of_loss(guid)).unwrap_or_default();
    let hash = Hash::Sha256.of(&[STARTED, &boot, &loss]);
    Ok(*hash.first_chunk().expect("it has 32 bytes"))
}

/// Records that bytes of a namespace were lost, until the machine is started again. Returns a start
/// that the namespace never had. If this cannot be recorded, the next target does not know.
pub(crate) fn lose(guid: &[u8; 16]) -> [u8; 16] {
    let loss = new().unwrap_or_else(|_| guid.map(|byte| !byte));
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    let note = options.write(true).create(true).truncate(true).mode(0o644).custom_flags(flags);
    let _ = note.open(note_of_loss(guid)).and_then(|mut note| note.write_all(&loss));
    loss
}

fn note_of_loss(guid: &[u8; 16]) -> PathBuf {
    Path::new(NOTES).join(format!("cairn-lost-{:032x}", u128::from_be_bytes(*guid)))
}

/// Removes the record of `lose`.
#[cfg(test)]
pub(crate) fn forget_loss(guid: &[u8; 16]) {
    let _ = std::fs::remove_file(note_of_loss(guid));
}

/// Random number that nothing else has, never 0.
pub(crate) fn number() -> Result<u64> {
    let bytes = new()?;
    let number = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
    Ok(number | 1)
}

/// Identity of a new namespace.
pub(crate) fn new() -> Result<[u8; 16]> {
    let mut guid = [0; 16];
    rustix::rand::getrandom(&mut guid, rustix::rand::GetRandomFlags::empty())?;
    Ok(guid)
}

/// Identity of a file or device of this machine.
pub(crate) fn of(file: &Metadata) -> [u8; 16] {
    let machine = MACHINE.map(|path| std::fs::read(path).unwrap_or_default());
    on(&machine.each_ref().map(Vec::as_slice), file)
}

fn on(machine: &[&[u8]; 2], file: &Metadata) -> [u8; 16] {
    let numbers = match file.file_type().is_block_device() {
        true => [file.rdev(), 0],
        false => [file.dev(), file.ino()],
    };
    let mut guid = [0; 16];
    let numbers = numbers.map(u64::to_le_bytes);
    let [id, name] = machine;
    let hash = Hash::Sha256.of(&[PURPOSE, id, b"\0", name, b"\0", &numbers.concat()]);
    guid.copy_from_slice(&hash[..16]);
    guid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;

    /// Mechanism: the identity of a file consisted of its device and inode numbers.
    ///
    /// Consequence: two machines set up alike exported namespaces with one identity. A host that
    /// saw both refused one, or took them for two paths to the same bytes.
    ///
    /// Fix: the identity includes the machine's.
    #[test]
    fn file_is_the_same_by_whatever_name_and_another_one_on_another_machine() {
        let directory = std::env::temp_dir().join(format!("cairn-identity-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let [path, link, other] = ["file", "link", "other"].map(|name| directory.join(name));
        for path in [&path, &other] {
            std::fs::File::create(path).unwrap().set_len(1 << 16).unwrap();
        }
        std::fs::hard_link(&path, &link).unwrap();
        let exported = |path| Namespace::in_file(path, 4096).unwrap().shape().guid;
        let guid = exported(&path);
        assert_eq!(guid, exported(&path), "by the next target");
        assert_eq!(guid, exported(&link));
        assert_ne!(guid, exported(&other));
        let file = path.metadata().unwrap();
        let machines: [[&[u8]; 2]; 3] = [[b"", b""], [b"", b"name\n"], [b"id\n", b"name\n"]];
        let [unknown, named, numbered] = machines.map(|machine| on(&machine, &file));
        assert!(unknown != named && named != numbered && numbered != unknown);
        assert_ne!(guid, unknown, "this machine is known");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
