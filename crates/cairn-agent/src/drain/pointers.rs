//! Files and links that name a checkpoint follow it: they are drained when that is outside.
//!
//! Must stay true: what is outside names nothing that is not, unless it did before; until then the version that is there stays.

use crate::ledger::Ledger;
use crate::manifest::Kind;
use crate::path::FilePath;
use crate::plan::{Plan, Tree};
use crate::pointer::{Places, TEXT_BYTES_MAX};
use crate::read::{Buffer, read_small};
use crate::sets::Name;
use crate::volume::Volume;

/// Leaves out of `plan` what names checkpoints that are not in `ledger`; the names.
pub fn leave(
    (volume, tree): (&Volume, &Tree),
    plan: &mut Plan,
    ledger: &Ledger,
    mount: &str,
) -> Vec<Name> {
    let is_small = |path: &&FilePath| {
        tree.get(*path).is_some_and(|node| (1..=TEXT_BYTES_MAX).contains(&node.bytes))
    };
    if plan.symlinks.is_empty() && !plan.copies.iter().any(|path| is_small(&path)) {
        return Vec::new();
    }
    let places = Places::of(mount, ledger.checkpoint_files());
    let mut buffer = Buffer::default();
    let mut awaited = Vec::new();
    let mut waits = |path: &FilePath| {
        let node = tree.get(path).filter(|node| node.kind == Kind::Symlink || is_small(&path));
        let Some(node) = node.filter(|_| !places.have(path)) else { return false };
        let text = match node.kind {
            Kind::Symlink => Some(node.target.clone()),
            _ => path
                .strip_prefix(volume.prefix())
                .and_then(|inner| read_small(volume, &inner, &mut buffer)),
        };
        let named = text.and_then(|text| places.named(path, &text));
        let missing = named.filter(|name| !ledger.has_checkpoint(name));
        let is_missing = missing.is_some();
        awaited.extend(missing);
        is_missing
    };
    plan.symlinks.retain(|path| !waits(path));
    plan.copies.retain(|path| !waits(path));
    awaited
}
