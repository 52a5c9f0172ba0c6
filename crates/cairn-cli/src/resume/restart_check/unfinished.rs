//! Which unfinished checkpoints are set aside before a program resumes.
//!
//! Frameworks take the directory with the highest number as their newest checkpoint, also if they
//! were killed while they wrote it. They then fail at each start, or go on with half of a state.
//!
//! Must stay true: a directory is set aside only if its own program could not go on from it, and
//! can from the one before. It holds one step and nothing else. Either the program marked the step
//! and did not end it, or the step lacks a file that its framework writes late and needs, and that
//! the whole step before has. Of a first step, its other files tell the framework. Names, times and
//! missing files of other kinds are no reason: a step may have fewer files than the one before, and
//! a directory may be more than a step.

use cairn_agent::model::protocol::Unfinished;
use cairn_job::checkpoint::name::{self, Family, Name};
use cairn_job::checkpoint::sets::Member;
use cairn_job::checkpoint::sets::register::Checkpoint;
use cairn_job::file::path;
use cairn_job::file::path::FilePath;
use std::collections::{BTreeMap, BTreeSet};

use crate::drain::checkpoints::Found;
use crate::error::Result;

/// How frameworks call the directory of a step, before its number.
const STEPS: [&[u8]; 2] = [b"checkpoint", b"ckpt"];
/// The same in a directory for checkpoints.
const STEPS_INSIDE: &[u8] = b"step";
/// Files that frameworks write late into a step, and need: transformers' Trainer, accelerate,
/// torch.distributed.checkpoint.
const NEEDED: [&[u8]; 3] = [b"trainer_state.json", b"random_states_0.pkl", b".metadata"];

/// How a framework is known by the files of its first step: by the begin and the end of the name of
/// any that were `written`, and by a torn one. They are those of the process that writes what is
/// `needed`: on another node the step is whole without it. Files that are written `later` say that
/// the end may be on another node.
struct Framework {
    written: &'static [(&'static [u8], &'static [u8])],
    torn: &'static [(&'static [u8], &'static [u8])],
    later: &'static [(&'static [u8], &'static [u8])],
    needed: &'static [u8],
}

/// transformers' Trainer, accelerate, torch.distributed.checkpoint, in the order in which each
/// writes: what is needed comes after the others.
const FRAMEWORKS: [Framework; 3] = [
    Framework {
        written: &[(b"training_args", b".bin"), (b"optimizer", b".pt"), (b"scheduler", b".pt")],
        torn: &[
            (b"model", b".safetensors"),
            (b"adapter_model", b".safetensors"),
            (b"pytorch_model", b".bin"),
        ],
        later: &[],
        needed: b"trainer_state.json",
    },
    Framework {
        written: &[(b"optimizer", b".bin"), (b"scheduler", b".bin")],
        torn: &[],
        later: &[(b"random_states_", b".pkl")],
        needed: b"random_states_0.pkl",
    },
    Framework { written: &[(b"__0_", b".distcp")], torn: &[], later: &[], needed: b".metadata" },
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
type DirectoryOf<'a> = dyn Fn(&Name, &[Member]) -> Result<Option<FilePath>> + 'a;

/// What is known of the files of a store.
pub struct Files<'a> {
    /// Its checkpoints.
    pub found: &'a Found,
    /// Where a checkpoint is.
    pub directory: &'a DirectoryOf<'a>,
    /// Whether a writer of a file died.
    pub is_torn: &'a dyn Fn(&FilePath) -> bool,
}

impl Files<'_> {
    /// Chooses among the unfinished checkpoints that were found.
    pub fn chosen(&self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for Unfinished { name, reason, is_unknown, .. } in &self.found.unfinished {
            let Some(files) = self.found.unfinished_files.get(name) else { continue };
            let before = self.before(name);
            let is_first = !self.found.complete.iter().any(|it| it.name.family == name.family);
            if before.is_none() && !is_first {
                continue;
            }
            let Some(place) = (self.directory)(name, files)? else { continue };
            let reason = match (before, is_marked(name)) {
                (Some(_), true) => (!is_unknown).then(|| reason.clone()),
                (Some(before), false) => self.lacking(files, &place, before),
                (None, true) => None,
                (None, false) => self.lacking_in_first(files, &place),
            };
            steps.extend(reason.map(|reason| Step { name: name.clone(), place, reason }));
        }
        Ok(steps)
    }

    /// Returns the newest whole checkpoint of the same family, if there is none behind `name`.
    fn before(&self, name: &Name) -> Option<&Checkpoint> {
        let same = self.found.complete.iter().filter(|known| known.name.family == name.family);
        same.max_by(|one, other| one.name.step.cmp(&other.name.step))
            .filter(|known| known.name.step < name.step)
    }

    /// Returns what the step with these files in `place` lacks.
    fn lacking(&self, files: &[Member], place: &FilePath, before: &Checkpoint) -> Option<String> {
        split(place)?;
        let depth = place.components().count();
        let there = files.iter().filter(|file| !(self.is_torn)(&file.path));
        let there: BTreeSet<FilePath> =
            there.filter_map(|file| file.path.strip_prefix(place)).collect();
        let lacking = needed(before, depth)?.into_iter().find(|inner| !there.contains(inner))?;
        Some(format!("it has no whole {lacking}"))
    }

    /// Returns what the first step with these files in `place` lacks.
    fn lacking_in_first(&self, files: &[Member], place: &FilePath) -> Option<String> {
        split(place)?;
        let is_torn = |file: &Member| (self.is_torn)(&file.path);
        let has = |patterns: &[(&[u8], &[u8])], file: &Member| {
            let name = file.path.split().map(|(_, name)| name).unwrap_or_default();
            patterns.iter().any(|(begin, end)| name.starts_with(begin) && name.ends_with(end))
        };
        let lacks = |one: &&Framework| {
            let is_its =
                |file: &Member| has(one.written, file) || is_torn(file) && has(one.torn, file);
            let is_needed = |file: &Member| {
                let name = file.path.split().map(|(_, name)| name);
                name == Some(one.needed) && !is_torn(file)
            };
            let is_later = |file: &Member| has(one.later, file) && !is_torn(file);
            files.iter().any(is_its) && !files.iter().any(|it| is_needed(it) || is_later(it))
        };
        let framework = FRAMEWORKS.iter().find(lacks)?;
        Some(format!("it has no whole {}", String::from_utf8_lossy(framework.needed)))
    }

    /// Returns the directories of steps that were begun and have no file yet. `names` are all names
    /// of a namespace, each with whether it is a directory.
    pub fn empty(&self, names: impl Iterator<Item = (FilePath, bool)> + Clone) -> Vec<Step> {
        let mut steps: BTreeMap<FilePath, Name> = BTreeMap::new();
        for (place, _) in names.clone().filter(|(_, is_directory)| *is_directory) {
            let name = split(&place).filter(|_| !path::is_aside(&place));
            steps.extend(name.map(|name| (place, name)));
        }
        let above = |path: &FilePath| {
            let parent = path.split().map(|(parent, _)| parent);
            std::iter::successors(parent, |path| Some(path.split()?.0))
        };
        for (path, _) in names.filter(|(_, is_directory)| !is_directory) {
            above(&path).for_each(|place| drop(steps.remove(&place)));
        }
        let is_chosen = |(place, name): &(&FilePath, &Name)| {
            let before = self.before(name);
            let is_needed = before.and_then(|before| needed(before, place.components().count()));
            is_needed.is_some() && !above(place).any(|place| steps.contains_key(&place))
        };
        let step = |(place, name): (&FilePath, &Name)| Step {
            name: name.clone(),
            place: place.clone(),
            reason: "it has no file yet".to_string(),
        };
        steps.iter().filter(is_chosen).map(step).collect()
    }
}

/// Returns the files of a checkpoint that its framework needs, relative to the directory in the
/// given depth; None if it is of no framework that is known.
fn needed(known: &Checkpoint, depth: usize) -> Option<BTreeSet<FilePath>> {
    let is_needed = |path: &&FilePath| path.split().is_some_and(|(_, name)| NEEDED.contains(&name));
    let inner = |path: &FilePath| {
        path.components().skip(depth).fold(FilePath::root(), |path, name| path.join(name))
    };
    let all: BTreeSet<FilePath> =
        known.files.iter().map(|file| &file.path).filter(is_needed).map(inner).collect();
    (!all.is_empty()).then_some(all)
}

/// Whether the program gave the name, and so says itself when the checkpoint is complete.
fn is_marked(name: &Name) -> bool {
    let family = &name.family.0;
    name.step.is_some() && !family.windows(6).any(|part| part == b"{step}")
}

/// Returns the checkpoint that a directory is, if it is called as frameworks call that of a step.
fn split(directory: &FilePath) -> Option<Name> {
    let (parent, name) = directory.split()?;
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, number) = name.split_at(name.len() - digits);
    let step = name::Step::parse(number)?;
    let word = before.strip_suffix(b"-").or(before.strip_suffix(b"_")).unwrap_or(before);
    let is_inside = || {
        let around = parent.split().map(|(_, name)| name.to_ascii_lowercase()).unwrap_or_default();
        let holds = |part: &[u8]| around.windows(part.len()).any(|found| found == part);
        STEPS.into_iter().any(holds)
    };
    let is_step = STEPS.contains(&word) || word == STEPS_INSIDE && is_inside();
    let family = parent.join(&[before, b"{step}"].concat());
    is_step.then(|| Name { family: Family(family.as_bytes().to_vec()), step: Some(step) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::checkpoint::sets::register::Level;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn name(step: u64) -> Name {
        Name { family: Family(b"run/checkpoint-{step}".to_vec()), step: Some(step.into()) }
    }

    /// Files of the directory `run/checkpoint-STEP`.
    fn members(step: u64, names: &[&str]) -> Vec<Member> {
        let member = |name: &&str| Member {
            path: path(&format!("run/checkpoint-{step}/{name}")),
            inode: 1,
            version: 1,
            bytes: 1,
        };
        names.iter().map(member).collect()
    }

    fn whole(step: u64, names: &[&str]) -> Checkpoint {
        Checkpoint {
            id: step,
            ordinal: step,
            name: name(step),
            files: members(step, names),
            completed_ns: 0,
            modified_ns: 0,
            level: Level::Node,
            wanted: Level::Node,
        }
    }

    fn unfinished(name: Name, files: u64, is_unknown: bool) -> Unfinished {
        Unfinished {
            name,
            files,
            bytes: 2,
            place: FilePath::root(),
            reason: "it ends".to_string(),
            is_unknown,
        }
    }

    /// Why step 20 with these files is chosen behind the whole ones; `torn` is one of them.
    fn reason(names: &[&str], complete: &[Checkpoint], torn: &str) -> Option<String> {
        let found = Found {
            complete: complete.to_vec(),
            unfinished: vec![unfinished(name(20), names.len() as u64, true)],
            unfinished_files: [(name(20), members(20, names))].into(),
            unclean: Vec::new(),
        };
        let directory = |_: &Name, _: &[Member]| Ok(Some(path("run/checkpoint-20")));
        let is_torn = |path: &FilePath| path.as_bytes().ends_with(torn.as_bytes());
        let files = Files { found: &found, directory: &directory, is_torn: &is_torn };
        files.chosen().expect("looks").pop().map(|step| step.reason)
    }

    #[test]
    fn directories_are_known_by_the_names_that_frameworks_give_them() {
        for (text, family) in [
            ("run/checkpoint-20", "run/checkpoint-{step}"),
            ("ckpts/checkpoint_3", "ckpts/checkpoint_{step}"),
            ("outputs/checkpoint/step-10", "outputs/checkpoint/step-{step}"),
            ("ckpt7", "ckpt{step}"),
        ] {
            let found = split(&path(text)).expect("is a step");
            assert_eq!(found.family.to_string(), family);
        }
        for name in ["run-2", "checkpoints/fold-2", "out/step-10", "checkpoint", "seed7/best", "20"]
        {
            assert_eq!(split(&path(name)), None, "{name}");
        }
    }

    #[test]
    fn step_is_chosen_if_it_lacks_what_its_framework_needs() {
        let trainer = ["model.safetensors", "optimizer.pt", "trainer_state.json"];
        let before = [whole(10, &trainer)];
        let said = Some("it has no whole trainer_state.json".to_string());
        assert_eq!(reason(&trainer[..2], &before, "optimizer.pt"), said);
        assert_eq!(reason(&trainer[..1], &before, "none"), said);
        assert_eq!(reason(&trainer, &before, "trainer_state.json"), said);
        assert_eq!(reason(&trainer, &before, "optimizer.pt"), None, "it could go on from it");
        assert_eq!(reason(&trainer[..1], &[], "none"), None, "it may be of another program");
        assert_eq!(reason(&trainer[..2], &[whole(30, &trainer)], "none"), None, "a newer is whole");
        let shards = ["model/.metadata", "optimizer/.metadata", "random_states_0.pkl"];
        let said = Some("it has no whole optimizer/.metadata".to_string());
        assert_eq!(reason(&shards[..1], &[whole(10, &shards)], "none"), said);
    }

    /// Mechanism: a first step has none before it to be compared with. Consequence: a framework
    /// that was killed while it wrote its first step could not start any more. Fix: its other files
    /// tell what it lacks.
    #[test]
    fn first_step_is_chosen_if_its_framework_had_not_written_its_end() {
        let said = |name: &str| Some(format!("it has no whole {name}"));
        for (names, torn, expected) in [
            (
                &["config.json", "model.safetensors"][..],
                "model.safetensors",
                said("trainer_state.json"),
            ),
            (
                &["model-00001-of-00002.safetensors", "training_args.bin"],
                "none",
                said("trainer_state.json"),
            ),
            (
                &["model.safetensors", "optimizer.pt", "trainer_state.json"],
                "trainer_state.json",
                said("trainer_state.json"),
            ),
            (&["model.safetensors", "optimizer.bin"], "none", said("random_states_0.pkl")),
            (&["__0_0.distcp", "__1_0.distcp"], "__1_0.distcp", said(".metadata")),
            (&["__0_0.distcp", ".metadata"], "none", None),
            (&["__8_0.distcp", "__9_0.distcp"], "none", None),
            (&["optimizer.bin", "random_states_8.pkl"], "none", None),
            (&["rng_state_8.pth"], "none", None),
            (&["config.json", "model.safetensors"], "none", None),
            (&["model.pt", "log.txt"], "log.txt", None),
        ] {
            assert_eq!(reason(names, &[], torn), expected, "{names:?}");
        }
    }

    /// Mechanism: what the step before had and this one lacked was proof that it is unfinished.
    /// Consequence: whole steps were set aside that had no evaluation yet, or fewer ranks, and
    /// directories that hold more than a step.
    #[test]
    fn fewer_files_and_a_dead_writer_are_no_reason() {
        let before = [whole(10, &["model.pt", "opt.pt", "rng_1.pth", "eval.json", "log.txt"])];
        for names in [&["model.pt", "opt.pt"][..], &["model.pt", "log.txt"], &["best.pt"]] {
            assert_eq!(reason(names, &before, "log.txt"), None, "{names:?}");
        }
    }

    #[test]
    fn step_that_its_program_began_and_did_not_end_is_chosen() {
        let marked =
            |step: u64| Name { family: Family(b"trainer".to_vec()), step: Some(step.into()) };
        let chosen = |is_unknown, complete: &[Checkpoint]| {
            let found = Found {
                complete: complete.to_vec(),
                unfinished: vec![unfinished(marked(20), 1, is_unknown)],
                unfinished_files: [(marked(20), members(20, &["a"]))].into(),
                unclean: Vec::new(),
            };
            let directory = |_: &Name, _: &[Member]| Ok(Some(path("run/checkpoint-20")));
            let files = Files { found: &found, directory: &directory, is_torn: &|_| false };
            files.chosen().expect("looks").len() == 1
        };
        let before = [Checkpoint { name: marked(10), ..whole(10, &["a"]) }];
        assert!(chosen(false, &before) && !chosen(true, &before) && !chosen(false, &[]));
    }

    #[test]
    fn directory_without_files_is_a_step_behind_one_of_a_framework() {
        let empty = |complete: &[Checkpoint], names: &[&str]| {
            let found = Found {
                complete: complete.to_vec(),
                unfinished: Vec::new(),
                unfinished_files: [].into(),
                unclean: Vec::new(),
            };
            let files = Files { found: &found, directory: &|_, _| Ok(None), is_torn: &|_| false };
            let all = names.iter().map(|name| (path(name), !name.ends_with(".pt")));
            let steps = files.empty(all).into_iter();
            steps.map(|step| format!("{} {}", step.place, step.name)).collect::<Vec<_>>()
        };
        let before = [whole(10, &["trainer_state.json"])];
        let steps = ["run", "run/checkpoint-5", "run/checkpoint-20", "run/checkpoint-20/ckpt-20"];
        assert_eq!(empty(&before, &steps), ["run/checkpoint-20 run/checkpoint-20"]);
        let full = [&steps[..], &["run/checkpoint-20/ckpt-20/a.pt"]].concat();
        assert!(empty(&before, &full).is_empty(), "{:?}", empty(&before, &full));
        assert!(empty(&[], &steps).is_empty() && empty(&[whole(10, &["a"])], &steps).is_empty());
        assert!(empty(&before, &["out/checkpoint-20", ".cairn-damaged/checkpoint-20"]).is_empty());
    }
}
