//! Which directories are checkpoints by their names: those that differ from known ones only in the step.
//!
//! Must stay true: a directory is none unless a known checkpoint of its family is a directory.

use cairn_agent::path::FilePath;
use cairn_agent::sets::pattern::Pattern;
use cairn_agent::sets::{Family, Name};
use std::collections::BTreeMap;

/// The families whose checkpoints are directories.
pub struct Series(Vec<Pattern>);

impl Series {
    /// Those of these files, of which is said what checkpoint each is of.
    pub fn of<'a>(files: impl Iterator<Item = (&'a Name, &'a FilePath)>) -> Series {
        let mut families: BTreeMap<&Family, Option<Pattern>> = BTreeMap::new();
        for (name, path) in files.filter(|(name, _)| name.step.is_some()) {
            families.entry(&name.family).or_insert_with(|| within(name, path));
        }
        Series(families.into_values().flatten().collect())
    }

    /// The checkpoint that a directory is, or lies in.
    pub fn name(&self, directory: &FilePath) -> Option<Name> {
        let path = [directory.as_bytes(), b"/"].concat();
        let found = self.0.iter().find_map(|pattern| pattern.position(&path))?;
        Some(Name { family: found.family, step: found.step })
    }
}

/// What lies in directories that are of the same family as a checkpoint with this file; None if the file lies in none. A name
/// that a program gave says nothing of its files.
fn within(name: &Name, path: &FilePath) -> Option<Pattern> {
    let pattern = Pattern::parse(&format!("/{}/**", name.family)).ok()?;
    let is_in = pattern.position(path.as_bytes()).is_some_and(|found| found.step == name.step);
    is_in.then_some(pattern)
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
            ("ckpt-{step}", 3, "ckpt-3/a"),
            ("rank-{rank}/out/t{step}", 5, "rank-0/out/t0005/a/b"),
            ("dump.{step}", 7, "dump.7"),
            ("epoch={any}-step={step}{any}.ckpt", 9, "epoch=1-step=9.ckpt/a"),
            ("marked", 1, "marked/a"),
        ];
        let known = known.map(|(family, step, file)| {
            let family = Family(family.as_bytes().to_vec());
            (Name { family, step: Some(step) }, path(file))
        });
        let series = Series::of(known.iter().map(|(name, path)| (name, path)));
        let name = |directory| series.name(&path(directory)).map(|name| name.to_string());
        for (directory, expected) in [
            ("ckpt-4", "ckpt-4"),
            ("ckpt-4/part/of", "ckpt-4"),
            ("rank-1/out/t0006", "rank-{rank}/out/t6"),
            ("epoch=2-step=18.ckpt", "epoch={any}-step=18{any}.ckpt"),
        ] {
            assert_eq!(name(directory).as_deref(), Some(expected), "{directory}");
        }
        for other in ["ckpt-4.tmp", "ckpt-new", "logs/ckpt-4", "rank-1/out", "dump.8", "marked"] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
