//! Which unfinished checkpoints are set aside before a program resumes.
//!
//! Frameworks take the directory with the highest number as their newest checkpoint, also if they
//! were killed while they wrote it. They then fail at each start, or go on with half of a state.
//!
//! Must stay true: only a directory is set aside that holds one step and nothing else, that says
//! by its name, or by its program's marks, that it is a checkpoint, and that lacks something for
//! certain. All else stays where it is: what looks unfinished may be what its program needs.

use cairn_agent::checkpoint::quarantine;
use cairn_agent::checkpoint::sets::Member;
use cairn_agent::checkpoint::sets::register::Checkpoint;
use cairn_agent::model::checkpoint_name::{Family, Name};
use cairn_agent::model::path::FilePath;
use cairn_agent::model::protocol::Unfinished;
use std::collections::{BTreeMap, BTreeSet};

use crate::drain::checkpoints::Found;
use crate::error::Result;

/// How frameworks call the directory of a step, before its number: transformers and accelerate,
/// DeepSpeed, Megatron.
const STEPS: [&[u8]; 4] = [b"checkpoint", b"ckpt", b"global_step", b"iter"];
/// As above, in a directory for checkpoints: torchtitan.
const STEPS_INSIDE: &[u8] = b"step";
/// Ends of the names of files that only this framework writes together into a step, and the file
/// that it writes later, and needs: transformers' Trainer, torch.distributed.checkpoint.
const LATER: [(&[&[u8]], &[u8]); 2] = [
    (&[b"training_args.bin", b"optimizer.pt"], b"trainer_state.json"),
    (&[b".distcp"], b".metadata"),
];

/// An unfinished checkpoint that no program shall find.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: Name,
    /// The directory that holds its files and nothing else.
    pub place: FilePath,
    /// Why it is unfinished.
    pub reason: String,
}

/// Returns the directory that holds these files of a checkpoint and nothing else, if there is one.
pub type DirectoryOf<'a> = dyn Fn(&Name, &[Member]) -> Result<Option<FilePath>> + 'a;

/// Chooses among the unfinished checkpoints that were found.
pub fn chosen(found: &Found, directory: &DirectoryOf<'_>) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for Unfinished { name, reason, is_unknown, .. } in &found.unfinished {
        let Some(files) = found.unfinished_files.get(name) else { continue };
        let same = found.complete.iter().filter(|known| known.name.family == name.family);
        let before = same.max_by_key(|known| known.name.step);
        if before.is_some_and(|before| before.name.step >= name.step) {
            continue;
        }
        let Some(place) = directory(name, files)? else { continue };
        let lacks = |before| lacks(files, &place, before);
        let is_step = is_marked(name) || split(&place).is_some();
        if is_step && (!is_unknown || is_begun(files) || before.is_some_and(lacks)) {
            steps.push(Step { name: name.clone(), place, reason: reason.clone() });
        }
    }
    Ok(steps)
}

/// Returns the directories of steps that were begun and have no file yet. `names` are all names of
/// a namespace, each with whether it is a directory. A step whose number is not the highest beside
/// it is none: its files may have been removed.
pub fn empty(names: impl Iterator<Item = (FilePath, bool)> + Clone) -> Vec<Step> {
    let mut steps: BTreeMap<FilePath, Name> = BTreeMap::new();
    let mut highest: BTreeMap<Family, Option<u64>> = BTreeMap::new();
    for (place, _) in names.clone().filter(|(_, is_directory)| *is_directory) {
        let Some((word, number)) = split(&place).filter(|_| !quarantine::is_aside(&place)) else {
            continue;
        };
        let parent = place.split().map(|(parent, _)| parent).unwrap_or_default();
        let family = Family(parent.join(&[&word[..], b"{step}"].concat()).as_bytes().to_vec());
        let known = highest.entry(family.clone()).or_default();
        *known = (*known).max(Some(number));
        steps.insert(place, Name { family, step: Some(number) });
    }
    let above = |path: &FilePath| {
        let parent = path.split().map(|(parent, _)| parent);
        std::iter::successors(parent, |path| Some(path.split()?.0))
    };
    for (path, _) in names.filter(|(_, is_directory)| !is_directory) {
        above(&path).for_each(|place| drop(steps.remove(&place)));
    }
    let is_outermost = |place: &FilePath| !above(place).any(|place| steps.contains_key(&place));
    let is_chosen = |(place, name): &(&FilePath, &Name)| {
        highest.get(&name.family) == Some(&name.step) && is_outermost(place)
    };
    let chosen = steps.iter().filter(is_chosen);
    let reason = || "it has no file yet".to_string();
    let step = |(place, name): (&FilePath, &Name)| Step {
        name: name.clone(),
        place: place.clone(),
        reason: reason(),
    };
    chosen.map(step).collect()
}

/// Whether the program gave the name, and so says itself when the checkpoint is complete.
fn is_marked(name: &Name) -> bool {
    let family = &name.family.0;
    name.step.is_some() && !family.windows(6).any(|part| part == b"{step}")
}

/// Splits the name of a directory, if it is called as frameworks call that of a step, into what is
/// before the number and the number.
fn split(directory: &FilePath) -> Option<(Vec<u8>, u64)> {
    let (parent, name) = directory.split()?;
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, number) = name.split_at(name.len() - digits);
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    let word = before.strip_suffix(b"-").or(before.strip_suffix(b"_")).unwrap_or(before);
    let word = word.to_ascii_lowercase();
    let is_inside = || {
        let around = parent.split().map(|(_, name)| name.to_ascii_lowercase()).unwrap_or_default();
        let holds = |part: &[u8]| around.windows(part.len()).any(|found| found == part);
        holds(b"checkpoint") || holds(b"ckpt")
    };
    let is_step = STEPS.contains(&&word[..]) || word == STEPS_INSIDE && is_inside();
    is_step.then(|| (before.to_vec(), number))
}

/// Whether a framework's earlier files are there, and its later one is not.
fn is_begun(files: &[Member]) -> bool {
    let names = || files.iter().filter_map(|file| Some(file.path.split()?.1));
    LATER.iter().any(|(earlier, later)| {
        let has = |end: &&[u8]| names().any(|name| name.ends_with(end));
        earlier.iter().all(has) && !names().any(|name| name == *later)
    })
}

/// Whether the step with these files in `place` has no file for one that the step before has.
fn lacks(files: &[Member], place: &FilePath, before: &Checkpoint) -> bool {
    let (there, here) = (before.name.step, before.files.first());
    let number = split(place).map(|(_, number)| number);
    let depth = place.components().count();
    let Some(other) = here.map(|file| top(&file.path, depth)) else { return false };
    let own: BTreeSet<Vec<u8>> = files
        .iter()
        .filter_map(|file| Some(without(&file.path.strip_prefix(place)?, number)))
        .collect();
    let mut others = before.files.iter().filter_map(|file| file.path.strip_prefix(&other));
    others.any(|inner| !own.contains(&without(&inner, there)))
}

/// The first `depth` components of a path.
fn top(path: &FilePath, depth: usize) -> FilePath {
    path.components().take(depth).fold(FilePath::root(), |path, name| path.join(name))
}

/// A path with a sign in place of each number that is `step`.
fn without(path: &FilePath, step: Option<u64>) -> Vec<u8> {
    let mut text = Vec::new();
    let parts = path.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    for part in parts {
        let number = std::str::from_utf8(part).ok().and_then(|digits| digits.parse::<u64>().ok());
        match number.is_some() && number == step {
            true => text.push(b'#'),
            false => text.extend(part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_agent::checkpoint::sets::register::Level;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn members(names: &[&str]) -> Vec<Member> {
        let member = |name: &&str| Member { path: path(name), inode: 1, version: 1, bytes: 1 };
        names.iter().map(member).collect()
    }

    fn step(number: u64, names: &[&str]) -> Checkpoint {
        Checkpoint {
            id: number,
            ordinal: number,
            completed_ns: 0,
            name: Name { family: Family(b"run/checkpoint-{step}".to_vec()), step: Some(number) },
            files: members(names),
            modified_ns: 0,
            level: Level::Node,
            wanted: Level::Node,
        }
    }

    #[test]
    fn directories_are_known_by_the_names_that_frameworks_give_them() {
        let known = [
            "run/checkpoint-20",
            "ckpts/checkpoint_3",
            "out/global_step10",
            "out/iter_0000010",
            "outputs/checkpoint/step-10",
            "ckpt7",
        ];
        for name in known {
            assert!(split(&path(name)).is_some(), "{name}");
        }
        for name in ["run-2", "checkpoints/fold-2", "out/step-10", "checkpoint", "seed7/best", "20"]
        {
            assert!(split(&path(name)).is_none(), "{name}");
        }
    }

    #[test]
    fn directory_without_files_is_a_step_if_its_number_is_the_highest() {
        let empty = |names: &[&str]| {
            let paths: Vec<FilePath> = names.iter().map(|name| path(name)).collect();
            let all = paths.iter().map(|path| (path.clone(), !path.as_bytes().ends_with(b".pt")));
            let steps = super::empty(all).into_iter();
            steps.map(|step| format!("{} {}", step.place, step.name)).collect::<Vec<_>>()
        };
        let steps = ["run", "run/checkpoint-10", "run/checkpoint-10/a.pt", "run/checkpoint-20"];
        assert_eq!(empty(&steps), ["run/checkpoint-20 run/checkpoint-20"]);
        let inner = [&steps[..], &["run/checkpoint-20/global_step20"]].concat();
        assert_eq!(empty(&inner), ["run/checkpoint-20 run/checkpoint-20"]);
        let full = [&inner[..], &["run/checkpoint-20/global_step20/a.pt"]].concat();
        assert!(empty(&full).is_empty(), "{:?}", empty(&full));
        let removed = ["run", "run/checkpoint-10", "run/checkpoint-20", "run/checkpoint-20/a.pt"];
        assert!(empty(&removed).is_empty());
        assert!(empty(&[".cairn-damaged", ".cairn-damaged/checkpoint-20", "run-2"]).is_empty());
    }

    #[test]
    fn step_lacks_what_the_one_before_has_under_the_same_name() {
        let before = step(10, &["run/checkpoint-10/a", "run/checkpoint-10/b/step-10.pt"]);
        let lacks = |names: &[&str]| lacks(&members(names), &path("run/checkpoint-20"), &before);
        assert!(lacks(&["run/checkpoint-20/a"]));
        assert!(lacks(&["run/checkpoint-20/a", "run/checkpoint-20/b/step-30.pt"]));
        assert!(!lacks(&["run/checkpoint-20/a", "run/checkpoint-20/b/step-20.pt"]));
    }

    #[test]
    fn only_a_newer_step_that_certainly_lacks_something_is_chosen() {
        let all = ["run/checkpoint-20/a", "run/checkpoint-20/b"];
        let complete = [step(10, &["run/checkpoint-10/a", "run/checkpoint-10/b"])];
        let chosen = |number: u64, names: &[&str], is_unknown: bool, complete: &[Checkpoint]| {
            let name = step(number, &[]).name;
            let unfinished = Unfinished {
                name: name.clone(),
                files: names.len() as u64,
                bytes: 2,
                place: FilePath::root(),
                reason: "it ends".to_string(),
                is_unknown,
                waits: false,
                is_outside: false,
            };
            let found = Found {
                complete: complete.to_vec(),
                unfinished: vec![unfinished],
                unfinished_files: [(name, members(names))].into(),
                unclean: Vec::new(),
            };
            let directory = |_: &Name, _: &[Member]| Ok(Some(path("run/checkpoint-20")));
            super::chosen(&found, &directory).expect("looks").len() == 1
        };
        assert!(chosen(20, &all, false, &complete) && chosen(20, &all[..1], true, &complete));
        assert!(chosen(20, &all, false, &[]), "a writer died in it");
        let trainer = ["training_args.bin", "optimizer.pt", "trainer_state.json"];
        let trainer = trainer.map(|name| format!("run/checkpoint-20/{name}"));
        let trainer = trainer.each_ref().map(String::as_str);
        let is_chosen = |count: usize| chosen(20, &trainer[..count], true, &[]);
        assert!(!is_chosen(1) && is_chosen(2) && !is_chosen(3));
        assert!(!chosen(20, &all, true, &complete), "it has all files");
        assert!(!chosen(20, &all[..1], true, &[]), "there is none to compare it with");
        assert!(!chosen(5, &all, false, &complete), "programs take a newer one");
    }
}
