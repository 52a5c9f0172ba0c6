//! Moves of a repair. Each one is a single rename, and the store shows which ones are done.
//!
//! Invariant: another process that finds the moves done up to any point can complete or undo them.
//! Files that programs changed meanwhile stay. Nothing is removed except what was built, or what
//! that replaced.

use cairn_agent::checkpoint::quarantine::{Move, Repair};
use cairn_agent::store::volume::Volume;
use cairn_core::{Attributes, ROOT, RenameMode};
use cairn_job::file::path::FilePath;

use crate::error::Result;
use crate::store::locate;

/// Carries out the moves that are not done yet, and makes them durable. Errors: some of them may be
/// done.
pub fn carry_out(volumes: &[Volume], repair: &Repair) -> Result<()> {
    repair.moves.iter().try_for_each(|one| carry_out_one(volumes, one))?;
    make_durable(volumes)
}

/// Undoes the moves that are done, and makes that durable. Errors: some of them may still be done.
pub fn take_back(volumes: &[Volume], repair: &Repair) -> Result<()> {
    repair.moves.iter().rev().try_for_each(|one| take_back_one(volumes, one))?;
    make_durable(volumes)
}

/// Makes all changes in the store durable, each volume on its own media.
pub fn make_durable(volumes: &[Volume]) -> Result<()> {
    for volume in volumes {
        volume.fs().sync().map_err(volume.error("make durable", &FilePath::root()))?;
    }
    Ok(())
}

fn carry_out_one(volumes: &[Volume], one: &Move) -> Result<()> {
    let Some(place) = Place::of(volumes, one) else { return Ok(()) };
    if place.is(&place.to, one.inode) || !place.is(&place.from, one.inode) {
        return Ok(());
    }
    match (one.replaces, place.look(&place.to)) {
        (Some(damaged), Some(found)) if (found.inode.0, found.version) == damaged => {
            place.rename(&place.from, &place.to, RenameMode::Exchange)
        }
        (None, None) => place.rename(&place.from, &place.to, RenameMode::NoReplace),
        // A program has written, removed or created something there.
        _ => Ok(()),
    }
}

fn take_back_one(volumes: &[Volume], one: &Move) -> Result<()> {
    let Some(place) = Place::of(volumes, one) else { return Ok(()) };
    if place.is(&place.from, one.inode) || !place.is(&place.to, one.inode) {
        return Ok(());
    }
    match (one.replaces, place.look(&place.from)) {
        (Some((damaged, _)), Some(found)) if found.inode.0 == damaged => {
            place.rename(&place.to, &place.from, RenameMode::Exchange)
        }
        (None, None) => place.rename(&place.to, &place.from, RenameMode::NoReplace),
        _ => Ok(()),
    }
}

/// Both paths of a move in their namespace.
struct Place<'a> {
    volume: &'a Volume,
    from: FilePath,
    to: FilePath,
}

impl<'a> Place<'a> {
    fn of(volumes: &'a [Volume], one: &Move) -> Option<Place<'a>> {
        let (volume, from) = locate(volumes, &one.from)?;
        Some(Place { volume, from, to: one.to.strip_prefix(volume.prefix())? })
    }

    fn look(&self, path: &FilePath) -> Option<Attributes> {
        self.volume.attributes(path).ok()
    }

    fn is(&self, path: &FilePath, inode: u32) -> bool {
        self.look(path).is_some_and(|found| found.inode.0 == inode)
    }

    fn rename(&self, from: &FilePath, to: &FilePath, mode: RenameMode) -> Result<()> {
        let (fs, caller) = (self.volume.fs(), self.volume.caller());
        match fs.rename(&caller, (ROOT, from.as_bytes()), (ROOT, to.as_bytes()), mode) {
            // The parent directory is gone.
            Err(cairn_core::Error::NotFound) => Ok(()),
            renamed => Ok(renamed.map_err(self.volume.error("move", from))?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Scratch;
    use super::*;
    use crate::store::building;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    /// Prepares a checkpoint with a repaired file, a file that is set aside by itself, a directory
    /// that is set aside, and a checkpoint that is brought in.
    fn prepared() -> (Scratch, Repair) {
        let scratch = Scratch::new();
        for (name, content) in [
            ("state.2.a", "damaged"),
            ("state.2.b", "whole"),
            ("state.3", "damaged"),
            ("ckpt-10/x", "other"),
            ("ckpt-1/x", "damaged"),
            (".cairn-damaged/.cairn-building/state.2.a", "built"),
            (".cairn-damaged/.cairn-building/ckpt-0/x", "brought"),
        ] {
            scratch.write(name, content.as_bytes());
        }
        let found = |name: &str| scratch.volume.attributes(&path(name)).expect("is there");
        let one = |from: &str, to: &str, replaces| Move {
            inode: found(from).inode.0,
            from: path(from),
            to: path(to),
            replaces,
        };
        let damaged = found("state.2.a");
        let moves = vec![
            one("state.3", ".cairn-damaged/state.3", None),
            one("ckpt-1", ".cairn-damaged/ckpt-1", None),
            one(".cairn-damaged/.cairn-building/ckpt-0", "ckpt-0", None),
            one(
                ".cairn-damaged/.cairn-building/state.2.a",
                "state.2.a",
                Some((damaged.inode.0, damaged.version)),
            ),
        ];
        let (aside, brought) = (Vec::new(), Vec::new());
        (scratch, Repair { format: 1, aside, unfinished: false, goes_on: None, brought, moves })
    }

    const BEFORE: [(&str, &str); 5] = [
        ("ckpt-1/x", "damaged"),
        ("ckpt-10/x", "other"),
        ("state.2.a", "damaged"),
        ("state.2.b", "whole"),
        ("state.3", "damaged"),
    ];
    const AFTER: [(&str, &str); 6] = [
        (".cairn-damaged/ckpt-1/x", "damaged"),
        (".cairn-damaged/state.3", "damaged"),
        ("ckpt-0/x", "brought"),
        ("ckpt-10/x", "other"),
        ("state.2.a", "built"),
        ("state.2.b", "whole"),
    ];

    fn of(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, content)| (name.to_string(), content.to_string())).collect()
    }

    #[test]
    fn moves_that_are_cut_off_anywhere_are_carried_out_or_taken_back_as_a_whole() {
        let count = prepared().1.moves.len();
        for done in 0..=count {
            for goes_on in [true, false] {
                let (scratch, repair) = prepared();
                let volumes = std::slice::from_ref(&scratch.volume);
                for one in &repair.moves[..done] {
                    carry_out_one(volumes, one).expect("moves");
                }
                match goes_on {
                    true => carry_out(volumes, &repair).expect("carries out"),
                    false => take_back(volumes, &repair).expect("takes back"),
                }
                building::clear(volumes);
                let expected = if goes_on { of(&AFTER) } else { of(&BEFORE) };
                assert_eq!(scratch.contents(), expected, "{done} done, goes on: {goes_on}");
                assert_eq!(scratch.volume.attributes(&path(".cairn-damaged")).is_ok(), goes_on);
            }
        }
    }

    #[test]
    fn what_was_changed_since_stays_as_it_is() {
        let (scratch, repair) = prepared();
        scratch.write("state.2.a", b"written again");
        scratch.write("ckpt-0/y", b"made");
        let volume = &scratch.volume;
        volume.fs().unlink(&volume.caller(), ROOT, b"state.3").expect("removes");
        let volumes = std::slice::from_ref(volume);
        carry_out(volumes, &repair).expect("carries out");
        building::clear(volumes);
        let expected = [
            (".cairn-damaged/ckpt-1/x", "damaged"),
            ("ckpt-0/y", "made"),
            ("ckpt-10/x", "other"),
            ("state.2.a", "written again"),
            ("state.2.b", "whole"),
        ];
        assert_eq!(scratch.contents(), of(&expected));
    }
}
