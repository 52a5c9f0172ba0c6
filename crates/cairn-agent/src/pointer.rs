//! Files and symbolic links that name a checkpoint: `latest` of DeepSpeed, `latest_checkpointed_iteration.txt` of Megatron, `last.ckpt` of
//! Lightning.
//!
//! Pure: their names and texts, and which checkpoints are known, decide. A text names a checkpoint by the path of its directory or
//! file, as seen from where the text is, or by its step alone.
//! Must stay true: a number is the step of a checkpoint only if one of that step is known beside it, or the file's name says that it is
//! the last one's: else it may be anything.

use crate::path::FilePath;
use crate::sets::Name;
use crate::sets::series::{Series, has_number};
use std::collections::BTreeMap;

/// A longer file names nothing.
pub const TEXT_BYTES_MAX: u64 = 1024;
/// What is in the name of a file whose text is the step of the newest checkpoint.
const WORDS: [&str; 2] = ["latest", "last"];

/// Checkpoints by their files.
pub struct Places<'a> {
    mount: &'a str,
    files: BTreeMap<&'a FilePath, &'a Name>,
    /// By a directory, whether what has the step in its name there is a file, and the step: a directory is meant rather than a file.
    beside: BTreeMap<(FilePath, bool, u64), &'a Name>,
    series: Series,
}

impl<'a> Places<'a> {
    /// Those of these files, of which is said what checkpoint each is of; programs find them below `mount`.
    pub fn of(mount: &'a str, files: impl Iterator<Item = (&'a Name, &'a FilePath)>) -> Places<'a> {
        let files: BTreeMap<_, _> = files.map(|(name, path)| (path, name)).collect();
        let series = Series::of(files.iter().map(|(path, name)| (*name, *path)));
        let mut beside = BTreeMap::new();
        for (path, name) in &files {
            let Some(step) = name.step else { continue };
            let mut here = FilePath::root();
            for component in path.components() {
                let below = here.join(component);
                if has_number(component, step) {
                    beside.entry((here, below == **path, step)).or_insert(*name);
                }
                here = below;
            }
        }
        Places { mount, files, beside, series }
    }

    /// Whether a file is part of a checkpoint: then it names none.
    pub fn have(&self, path: &FilePath) -> bool {
        self.files.contains_key(path)
    }

    /// The checkpoint that `text` names, which is that of a file or the target of a link at `pointer`.
    pub fn named(&self, pointer: &FilePath, text: &[u8]) -> Option<Name> {
        let (directory, name) = pointer.split()?;
        let word = text.trim_ascii();
        if let Some(step) = number(word) {
            let name = name.to_ascii_lowercase();
            let is_last = WORDS.iter().any(|word| contains(&name, word.as_bytes()));
            return self.numbered(&directory, step, is_last);
        }
        let target = self.target(&directory, word)?;
        let last = target.split()?.1;
        let is_named = |name: &&Name| name.step.is_none_or(|step| has_number(last, step));
        let below = target.join(b"");
        let first = self.files.range::<&FilePath, _>(&below..).next();
        let first = first.filter(|(file, _)| file.strip_prefix(&target).is_some());
        let is_directory = |name: &&Name| name.step.is_some();
        let first = first.map(|(_, name)| *name).filter(is_directory);
        let known = self.files.get(&target).copied().or(first).filter(is_named).cloned();
        let alike = || self.series.name(&target).or_else(|| self.series.name_of_file(&target));
        // What is in a directory that is a checkpoint goes where that goes.
        let own = self.series.name(&directory);
        known.or_else(alike).filter(|name| own.as_ref() != Some(name))
    }

    /// What a text has to be that names `other` in the way in which `text` names a checkpoint of its family; None if there is none.
    pub fn renamed(&self, pointer: &FilePath, text: &[u8], other: &Name) -> Option<Vec<u8>> {
        let named = self.named(pointer, text)?;
        let (from, to) = (named.step?, other.step.filter(|_| named.family == other.family)?);
        let word = text.trim_ascii();
        let begin = text.len() - text.trim_ascii_start().len();
        let whole =
            |word: &[u8]| [&text[..begin], word, &text[begin + text.trim_ascii().len()..]].concat();
        if number(word).is_some() {
            let width = if word[0] == b'0' { word.len() } else { 0 };
            return Some(whole(format!("{to:0width$}").as_bytes()));
        }
        let (directory, _) = pointer.split()?;
        let target = self.target(&directory, word)?;
        let count = target.components().count();
        let is_alike = |one: &[u8], other: &[u8]| {
            one == other || has_number(one, from) && has_number(other, to)
        };
        let mut files = self.files.iter().filter(|(_, name)| **name == other);
        let place = files.find_map(|(file, _)| {
            let begin: Vec<&[u8]> = file.components().take(count).collect();
            let mut pairs = target.components().zip(begin.iter().copied());
            let is_it = begin.len() == count && pairs.all(|(one, other)| is_alike(one, other));
            is_it.then(|| begin.iter().fold(FilePath::root(), |path, name| path.join(name)))
        })?;
        match word.starts_with(b"/") {
            true => Some(whole(&[self.mount.as_bytes(), b"/", place.as_bytes()].concat())),
            false => Some(whole(place.strip_prefix(&directory)?.as_bytes())),
        }
    }

    /// The checkpoint of this step of which something lies in `directory`; if none is known, one that would.
    fn numbered(&self, directory: &FilePath, step: u64, is_last: bool) -> Option<Name> {
        let known = |is_file| self.beside.get(&(directory.clone(), is_file, step)).copied();
        let any = |is_file| {
            let from = (directory.clone(), is_file, 0);
            let there = self.beside.range(from..=(directory.clone(), is_file, u64::MAX)).next();
            there.map(|(_, name)| *name).filter(|_| is_last)
        };
        let known = known(false).or_else(|| known(true));
        let alike = known.or_else(|| any(false)).or_else(|| any(true))?;
        Some(Name { family: alike.family.clone(), step: Some(step) })
    }

    /// Where a path leads that is read in `directory`; None if it leads elsewhere, or up.
    fn target(&self, directory: &FilePath, word: &[u8]) -> Option<FilePath> {
        match word.starts_with(b"/") {
            true => FilePath::parse(word.strip_prefix(self.mount.as_bytes())?.strip_prefix(b"/")?),
            false => FilePath::parse(word).map(|inner| directory.append(&inner)),
        }
    }
}

/// The number that a text is.
fn number(word: &[u8]) -> Option<u64> {
    let is_number = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| is_number)?.parse().ok()
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sets::Family;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    const KNOWN: [(&str, Option<u64>, &str); 8] = [
        ("out/global_step{step}", Some(100), "out/global_step100/model"),
        ("out/global_step{step}", Some(200), "out/global_step200/model"),
        ("iter_{step}", Some(100), "iter_0000100/a"),
        ("iter_{step}", Some(200), "iter_0000200/a"),
        ("epoch={step}.ckpt", Some(3), "epoch=3.ckpt"),
        ("epoch={step}.ckpt", Some(4), "epoch=4.ckpt"),
        ("state.pt", None, "state.pt"),
        ("marked", Some(1), "elsewhere/a"),
    ];

    fn with_places(act: impl Fn(&Places<'_>)) {
        let known = KNOWN.map(|(family, step, file)| {
            (Name { family: Family(family.as_bytes().to_vec()), step }, path(file))
        });
        let files = known.iter().map(|(name, file)| (name, file));
        act(&Places::of("/cairn", files));
    }

    #[test]
    fn text_names_a_checkpoint_by_its_path_or_step() {
        with_places(|places| {
            for (pointer, text, expected) in [
                ("out/latest", "global_step100", Some("out/global_step100")),
                ("out/latest", "global_step100\n", Some("out/global_step100")),
                ("latest", "out/global_step200/model", Some("out/global_step200")),
                ("latest", "/cairn/out/global_step200", Some("out/global_step200")),
                ("out/latest", "global_step300", Some("out/global_step300")),
                ("latest_checkpointed_iteration.txt", "100", Some("iter_100")),
                ("latest_checkpointed_iteration.txt", "300", Some("iter_300")),
                ("counter", "0000200\n", Some("iter_200")),
                ("last.ckpt", "epoch=4.ckpt", Some("epoch=4.ckpt")),
                ("last.ckpt", "epoch=5.ckpt", Some("epoch=5.ckpt")),
                ("best", "./state.pt", Some("state.pt")),
                ("counter", "300", None),
                ("far/latest", "100", None),
                ("latest", "global_step100", None),
                ("latest", "/elsewhere/out/global_step100", None),
                ("out/a/latest", "../global_step100", None),
                ("out/global_step100/link", "model", None),
                ("latest", "release", None),
                ("latest", "out", None),
                ("latest", "epoch=4.ckpt epoch=3.ckpt", None),
                ("latest", "", None),
            ] {
                let named = places.named(&path(pointer), text.as_bytes());
                assert_eq!(
                    named.map(|name| name.to_string()).as_deref(),
                    expected,
                    "{pointer} {text}"
                );
            }
        });
    }

    #[test]
    fn another_checkpoint_is_named_in_the_same_form() {
        with_places(|places| {
            for (pointer, text, other, expected) in [
                ("out/latest", "global_step300\n", 1, Some("global_step200\n")),
                ("latest", "/cairn/out/global_step300", 0, Some("/cairn/out/global_step100")),
                ("latest", "out/global_step300/model", 0, Some("out/global_step100/model")),
                ("latest_checkpointed_iteration.txt", " 300 ", 2, Some(" 100 ")),
                ("latest", "0000300", 3, Some("0000200")),
                ("last.ckpt", "epoch=5.ckpt", 4, Some("epoch=3.ckpt")),
                ("last.ckpt", "epoch=5.ckpt", 0, None),
                ("best", "state.pt", 6, None),
            ] {
                let (family, step, _) = KNOWN[other];
                let other = Name { family: Family(family.as_bytes().to_vec()), step };
                let renamed = places.renamed(&path(pointer), text.as_bytes(), &other);
                assert_eq!(renamed.as_deref(), expected.map(str::as_bytes), "{pointer} {text}");
            }
        });
    }
}
