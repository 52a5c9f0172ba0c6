//! By what hosts know that a namespace is the same one, or another: its NGUID; and that what was
//! written there may be gone, because the machine was started again.
//!
//! Must stay true: a file or device keeps its identity when its target is started again, and by
//! whatever name it is exported; on another machine, where the same numbers stand for other files,
//! it is another one.

use cairn_nvme::crypto::Hash;
use rustix::fs::OFlags;
use std::fs::{Metadata, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What tells machines apart, of which each may be missing, or be the same on machines that were
/// made from one image.
const MACHINE: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/hostname"];
/// So that nobody else arrives at the same bytes, nor finds out from them what the machine's are.
const PURPOSE: &[u8] = b"cairn namespace";

/// What is another one whenever the machine is started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// What is written there is gone when the machine is started again.
const NOTES: &str = "/dev/shm";
const STARTED: &[u8] = b"cairn target's start";

/// Which start of the machine this is, of the namespace with that identity: it has what was written
/// since, whichever target wrote it, unless one has lost some of that. Where that cannot be found
/// out each target is a start of its own.
pub(crate) fn start(guid: &[u8; 16]) -> Result<[u8; 16]> {
    let Some(boot) = std::fs::read(BOOT).ok().filter(|boot| !boot.is_empty()) else {
        return new();
    };
    let loss = std::fs::read(note_of_loss(guid)).unwrap_or_default();
    let hash = Hash::Sha256.of(&[STARTED, &boot, &loss]);
    Ok(*hash.first_chunk().expect("it has 32 bytes"))
}

/// Notes, until the machine is started again, that bytes of a namespace were lost; a start that it
/// never had. Where that cannot be noted the next target does not know.
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

/// Removes what `lose` has noted.
#[cfg(test)]
pub(crate) fn forget_loss(guid: &[u8; 16]) {
    let _ = std::fs::remove_file(note_of_loss(guid));
}

/// A number that nothing else has, not 0.
pub(crate) fn number() -> Result<u64> {
    let bytes = new()?;
    let number = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
    Ok(number | 1)
}

/// That of nothing that was there before.
pub(crate) fn new() -> Result<[u8; 16]> {
    let mut guid = [0; 16];
    rustix::rand::getrandom(&mut guid, rustix::rand::GetRandomFlags::empty())?;
    Ok(guid)
}

/// That of a file or device of this machine.
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

    /// Mechanism: the identity of a file was its device's and inode's numbers. Consequence: two
    /// machines that were set up alike exported namespaces of one identity, and a host that saw
    /// both refused one, or took them for two ways to the same bytes.
    /// Fix: the machine's identity is a part of it.
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
