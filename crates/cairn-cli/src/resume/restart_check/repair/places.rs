//! Chooses which paths are moved when a checkpoint is set aside, and where to.
//!
//! Must stay true: no file of another checkpoint, and no file without one, is moved. What was set
//! aside before is not replaced.

use cairn_job::checkpoint::name::Step;
use cairn_job::checkpoint::sets::series::has_step;
use cairn_job::file::path::{ASIDE, BUILDING, FilePath, UNFINISHED, unfinished_place};
use std::collections::BTreeSet;

/// Returns the paths that hold a checkpoint: directories that belong to it alone and have its step
/// in their names, and its files outside of such directories. `files` and `others` are all files of
/// a namespace.
pub fn places<'a>(
    step: Option<&Step>,
    files: &[FilePath],
    others: impl Iterator<Item = &'a FilePath>,
) -> BTreeSet<FilePath> {
    let shared: BTreeSet<FilePath> = others.flat_map(directories_of).collect();
    let is_named = |directory: &FilePath| {
        let name = directory.split().map(|(_, name)| name);
        name.zip(step).is_some_and(|(name, step)| has_step(name, step))
    };
    let place = |file: &FilePath| {
        let mut directories = directories_of(file).into_iter();
        let own = directories.find(|path| is_named(path) && !shared.contains(path));
        own.unwrap_or_else(|| file.clone())
    };
    files.iter().map(place).collect()
}

/// Returns the directories above a file, the topmost first.
fn directories_of(file: &FilePath) -> Vec<FilePath> {
    let names: Vec<&[u8]> = file.components().collect();
    let mut here = FilePath::root();
    let mut directories = Vec::new();
    for name in names.iter().take(names.len().saturating_sub(1)) {
        here = here.join(name);
        directories.push(here.clone());
    }
    directories
}

/// Returns the directory below which `places` are set aside, such that none of the resulting names
/// is taken.
pub fn set_aside(places: &BTreeSet<FilePath>, is_taken: impl Fn(&FilePath) -> bool) -> FilePath {
    let aside = FilePath::root().join(ASIDE);
    let is_free = |base: &FilePath| !places.iter().any(|place| is_taken(&base.append(place)));
    let is_ours = |name| matches!(name, BUILDING | UNFINISHED);
    let meets_ours = places.iter().any(|place| place.components().next().is_some_and(is_ours));
    if !meets_ours && is_free(&aside) {
        return aside;
    }
    let numbered = (2_u64..).map(|number| aside.join(number.to_string().as_bytes()));
    numbered.into_iter().find(is_free).expect("there are fewer names than numbers")
}

/// Returns where the directory `place` of an unfinished checkpoint is set aside. Its name is
/// another one there, so that a program that searches all directories does not take it.
pub fn unfinished(place: &FilePath) -> Option<FilePath> {
    let (parent, name) = place.split()?;
    Some(unfinished_place().append(&parent).join(&[b"unfinished-", name].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn found(step: Option<u64>, own: &[&str], others: &[&str]) -> Vec<String> {
        let step = step.map(Step::from);
        let files: Vec<FilePath> = own.iter().map(|file| path(file)).collect();
        let others: Vec<FilePath> = others.iter().map(|file| path(file)).collect();
        let places = places(step.as_ref(), &files, others.iter()).into_iter();
        places.map(|place| place.to_lossy().into_owned()).collect()
    }

    #[test]
    fn unfinished_step_gets_another_name_where_it_is_set_aside() {
        let to = unfinished(&path("run/checkpoint-20")).expect("is no root");
        assert_eq!(to.to_lossy(), ".cairn-damaged/unfinished/run/unfinished-checkpoint-20");
    }

    /// Mechanism: files were moved one by one, and directories that became empty were removed.
    /// Consequence: a directory that also held a link or an empty directory stayed, and looked like
    /// the newest checkpoint. Fix: the checkpoint's own directory is moved with everything in it.
    #[test]
    fn directory_of_the_step_is_moved_as_a_whole() {
        let own = ["out/ckpt-1/a", "out/ckpt-1/b/c"];
        let others = ["out/ckpt-10/a", "out/ckpt-11/a", "out/log"];
        assert_eq!(found(Some(1), &own, &others), ["out/ckpt-1"]);
        assert_eq!(
            found(Some(7), &["r0/it-007/a", "r1/it-007/b"], &[]),
            ["r0/it-007", "r1/it-007"]
        );
        assert_eq!(found(Some(5), &["run5/step5/a"], &["run5/step6/a"]), ["run5/step5"]);
    }

    #[test]
    fn directory_whose_number_only_begins_or_ends_like_the_step_is_not_it() {
        for directory in ["ckpt-10", "ckpt-21", "ckpt-101", "ckpt"] {
            let file = format!("{directory}/a");
            assert_eq!(found(Some(1), &[&file], &[]), [file.as_str()]);
        }
        assert_eq!(found(None, &["ckpt-1/a"], &[]), ["ckpt-1/a"]);
        let huge = "ckpt-99999999999999999999999/a";
        assert_eq!(found(Some(1), &[huge], &[]), [huge]);
    }

    #[test]
    fn directory_with_a_file_of_something_else_stays() {
        assert_eq!(found(Some(2), &["t2/a", "t2/b"], &["t2/log"]), ["t2/a", "t2/b"]);
        assert_eq!(found(Some(2), &["t2/s2/a"], &["t2/log"]), ["t2/s2"]);
        assert_eq!(found(Some(2), &["s.2.a", "s.2.b"], &["s.1.a"]), ["s.2.a", "s.2.b"]);
    }

    #[test]
    fn nothing_that_was_set_aside_or_is_being_built_is_in_the_way() {
        let places = |names: &[&str]| names.iter().map(|name| path(name)).collect();
        let base = |names: &[&str], taken: &[&str]| {
            let is_taken = |path: &FilePath| taken.contains(&path.to_lossy().as_ref());
            set_aside(&places(names), is_taken).to_lossy().into_owned()
        };
        assert_eq!(base(&["ckpt-1"], &[".cairn-damaged/ckpt-2"]), ".cairn-damaged");
        let taken = [".cairn-damaged/ckpt-1", ".cairn-damaged/2/ckpt-1"];
        assert_eq!(base(&["ckpt-1"], &taken), ".cairn-damaged/3");
        assert_eq!(base(&["a", ".cairn-building/state.5"], &[]), ".cairn-damaged/2");
        assert_eq!(base(&["unfinished/run/ckpt-1"], &[]), ".cairn-damaged/2");
    }
}
