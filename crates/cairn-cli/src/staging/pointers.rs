//! Files and links that name a checkpoint which did not come name one that did, or are left out.
//!
//! Must stay true: what is brought in names nothing that is known to be missing; nothing changes where it came from.

use super::Staging;
use crate::error::Result;
use crate::local;
use crate::store::locate;
use cairn_agent::manifest::{Checkpoint, Entry, Kind};
use cairn_agent::path::FilePath;
use cairn_agent::pointer::{Places, TEXT_BYTES_MAX};
use cairn_agent::volume::{Volume, now};
use cairn_agent::write::NewFile;
use cairn_core::ROOT;

impl Staging<'_> {
    /// Mends what names a checkpoint that is not there, and says so.
    pub(super) fn mend_pointers(&mut self) -> Result<()> {
        let manifest = self.source.manifest;
        let whole = manifest.whole();
        let files = whole.iter().flat_map(|it| it.files.iter().map(|file| (&it.name, &file.path)));
        let parts = self.parts.iter().flat_map(|it| it.files.iter().map(|path| (&it.name, path)));
        let places = Places::of(&manifest.mount, files.chain(parts));
        for (path, entry) in &manifest.files {
            let is_here = (self.source.wanted)(path) && !self.staged.damaged.contains(path);
            if !is_here || places.have(path) {
                continue;
            }
            let Some(text) = self.text(path, entry) else { continue };
            let Some(named) = places.named(path, &text) else { continue };
            let is_there = |name: &str| self.staged.checkpoints.iter().any(|there| there == name);
            if is_there(&named.to_string()) {
                continue;
            }
            let came = |known: &&&Checkpoint| is_there(&known.name.to_string());
            let newest =
                whole.iter().rev().filter(came).find_map(|known| {
                    Some((&known.name, places.renamed(path, &text, &known.name)?))
                });
            let Some((volume, inner)) = locate(self.volumes, path) else { continue };
            let becomes = match &newest {
                Some((name, text)) => {
                    replace(volume, &inner, entry, text)?;
                    format!("names {name} now")
                }
                None => {
                    let removed =
                        volume.fs().unlink(&volume.caller_as_user(), ROOT, inner.as_bytes());
                    removed.map_err(volume.error("take away", &inner))?;
                    self.staged.files -= u64::from(entry.kind == Kind::File);
                    "is left out".to_string()
                }
            };
            self.staged.bytes -= entry.copy().map_or(0, |copy| copy.bytes);
            let new_bytes = newest.filter(|_| entry.kind == Kind::File);
            self.staged.bytes += new_bytes.map_or(0, |(_, text)| text.len() as u64);
            let line = format!("{path} named {named}, which is not there: it {becomes}");
            self.staged.mended.insert(path.clone(), line);
        }
        Ok(())
    }

    /// What a small file says, or where a link leads; None of anything else.
    fn text(&self, path: &FilePath, entry: &Entry) -> Option<Vec<u8>> {
        match (entry.kind, &entry.target) {
            (Kind::Symlink, Some(target)) => Some(target.0.clone()),
            (Kind::File, _) => {
                let copy = entry.copy().filter(|copy| copy.bytes <= TEXT_BYTES_MAX)?;
                self.source.origin.text(path, &copy)
            }
            _ => None,
        }
    }
}

/// Puts a file or link with another text in the place of one.
fn replace(volume: &Volume, inner: &FilePath, entry: &Entry, text: &[u8]) -> Result<()> {
    if entry.kind == Kind::Symlink {
        return local::make_symlink(volume, inner, text, now().0);
    }
    let mut file = NewFile::create(volume, inner)?;
    file.append(text)?;
    Ok(file.finish(entry.mode, now().0)?)
}
