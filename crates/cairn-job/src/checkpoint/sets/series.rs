//! Recognises directories and files as checkpoints by name: those that differ from known ones only
//! in the step.
//!
//! Must stay true: a directory counts only if a known checkpoint of its family is a directory.

use super::names::{Amount, Place, places};
use super::pattern::Pattern;
use crate::checkpoint::name::{Family, Name, Step};
use crate::file::path::FilePath;
use std::collections::BTreeMap;

/// Families of checkpoints with steps, as patterns.
pub struct Series {
    directories: Vec<Pattern>,
    files: Vec<Pattern>,
}

impl Series {
    /// Returns the series of these files, each given with the name of its checkpoint.
    pub fn of<'a>(files: impl Iterator<Item = (&'a Name, &'a FilePath)>) -> Series {
        let mut families: BTreeMap<&Family, (Option<Pattern>, Option<Pattern>)> = BTreeMap::new();
        for (name, path) in files.filter(|(name, _)| name.step.is_some()) {
            let patterns = || ["/**", ""].map(|end| pattern(name, path, end)).into();
            families.entry(&name.family).or_insert_with(patterns);
        }
        let (directories, files): (Vec<_>, Vec<_>) = families.into_values().unzip();
        Series {
            directories: directories.into_iter().flatten().collect(),
            files: files.into_iter().flatten().collect(),
        }
    }

    /// Returns the checkpoint that a directory is, or lies in.
    pub fn name(&self, directory: &FilePath) -> Option<Name> {
        find(&self.directories, &[directory.as_bytes(), b"/"].concat())
    }

    /// Returns the checkpoint that a file is.
    pub fn name_of_file(&self, path: &FilePath) -> Option<Name> {
        find(&self.files, path.as_bytes())
    }
}

fn find(patterns: &[Pattern], path: &[u8]) -> Option<Name> {
    let found = patterns.iter().find_map(|pattern| pattern.position(path))?;
    Some(Name { family: found.family, step: found.step })
}

/// Returns a pattern for the family of a checkpoint with this file, whose family name is followed
/// by `end`; None if the file does not match it. A name that a program gave does not describe its
/// files.
fn pattern(name: &Name, path: &FilePath, end: &str) -> Option<Pattern> {
    let pattern = Pattern::parse(&format!("/{}{end}", name.family)).ok()?;
    let is_of_it = pattern.position(path.as_bytes()).is_some_and(|found| found.step == name.step);
    is_of_it.then_some(pattern)
}

/// Whether a number in the name of a directory has the value of a step.
pub fn has_step(name: &[u8], step: &Step) -> bool {
    let of_step = Amount::of(step.as_str().as_bytes(), false);
    let name = [name, b"/"].concat();
    let is_it = |it: &Place| !it.is_hash && Amount::of(&name[it.range.clone()], false) == of_step;
    places(&name).iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        text.split('/').fold(FilePath::root(), |path, name| path.join(name.as_bytes()))
    }

    #[test]
    fn directory_is_a_checkpoint_if_a_known_one_of_its_family_is() {
        let known = [
            ("ckpt-{step}", "3", "ckpt-3/a"),
            ("rank-{rank}/out/t{step}", "0005", "rank-0/out/t0005/a/b"),
            ("dump.{step}", "7", "dump.7"),
            ("epoch={any}-step={step}{any}.ckpt", "9", "epoch=1-step=9.ckpt/a"),
            ("marked", "1", "marked/a"),
        ];
        let known = known.map(|(family, step, file)| {
            let family = Family(family.as_bytes().to_vec());
            (Name { family, step: Step::parse(step.as_bytes()) }, path(file))
        });
        let series = Series::of(known.iter().map(|(name, path)| (name, path)));
        let name = |directory| series.name(&path(directory)).map(|name| name.to_string());
        for (directory, expected) in [
            ("ckpt-4", "ckpt-4"),
            ("ckpt-4/part/of", "ckpt-4"),
            ("rank-1/out/t0006", "rank-*/out/t0006"),
            ("epoch=2-step=18.ckpt", "epoch=*-step=18*.ckpt"),
        ] {
            assert_eq!(name(directory).as_deref(), Some(expected), "{directory}");
        }
        for other in ["ckpt-4.tmp", "ckpt-new", "logs/ckpt-4", "rank-1/out", "dump.8", "marked"] {
            assert_eq!(name(other), None, "{other}");
        }
        let file = |name| series.name_of_file(&path(name)).map(|name| name.to_string());
        assert_eq!(file("dump.8").as_deref(), Some("dump.8"));
        assert_eq!((file("ckpt-4"), file("dump.8.tmp")), (None, None));
    }
}
