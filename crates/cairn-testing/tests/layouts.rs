//! What the names of real programs' checkpoints are taken for, at every moment of their lives.
//!
//! A model of a run: processes write the files of one step after the other, in the ways in which
//! their programs do. After each operation the sets are looked at; at some, the run is killed and
//! another one goes on. Must stay true, whatever the names are:
//! - What is said to be complete has all files of its step, each closed.
//! - What is said to be incomplete is: where that is not certain, nothing is claimed.
//! - A step that was followed by another whole one is known to be whole, also after a kill.
//! - A run that ended well leaves nothing incomplete.
//! - The name of a checkpoint without placeholders is that of a file or directory.
//!
//! The seed of a failure is in its message.

use cairn_job::checkpoint::policy::CheckpointPolicy;
use cairn_job::checkpoint::sets::register::{Moment, Register};
use cairn_job::checkpoint::sets::rules::Rules;
use cairn_job::checkpoint::sets::{DrainProgress, Run, Set};
use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path::FilePath;
use cairn_testing::random::{Random, SEEDS_VARIABLE, environment_number, soaking};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

const SECOND_NS: i64 = 1_000_000_000;
/// Steps that a run writes.
const STEPS: u64 = 5;
/// Lives of each layout; in each the run is killed once, or ends well.
const LIVES: u64 = 5;
const LIVES_IN_SOAK: u64 = 300;

/// How the files of a step come to their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each is written under its name.
    InPlace,
    /// Each is written under another name and renamed.
    Renamed,
    /// All are written in a directory whose name is that of the first component with `.tmp` behind
    /// it; it is renamed when they are whole.
    Directory,
}

/// Files of a step, as a program calls them: `{n}` is the step, `{i}` its index, `{t}` a time with
/// decimals, `{d}` a date, `{h}` a hash. Digits behind a colon are a width. A name that ends with
/// `!` is written in each step and belongs to none.
struct Layout {
    name: &'static str,
    way: Way,
    /// Files of each process.
    files: &'static [&'static [&'static str]],
    /// Number of steps that are kept; older ones are removed.
    kept: u64,
}

const fn layout(
    name: &'static str,
    way: Way,
    files: &'static [&'static [&'static str]],
    kept: u64,
) -> Layout {
    Layout { name, way, files, kept }
}

use Way::{Directory, InPlace, Renamed};

const LAYOUTS: &[Layout] = &[
    layout(
        "hf trainer",
        InPlace,
        &[&[
            "run/checkpoint-{n}/config.json",
            "run/checkpoint-{n}/model-00001-of-00002.safetensors",
            "run/checkpoint-{n}/model-00002-of-00002.safetensors",
            "run/checkpoint-{n}/optimizer.pt",
            "run/checkpoint-{n}/trainer_state.json",
        ]],
        2,
    ),
    layout(
        "hf trainer, staged",
        Directory,
        &[&[
            "checkpoint-{n}/config.json",
            "checkpoint-{n}/model.safetensors",
            "checkpoint-{n}/trainer_state.json",
        ]],
        2,
    ),
    layout(
        "accelerate",
        InPlace,
        &[&[
            "run/checkpoints/checkpoint_{i}/pytorch_model_fsdp_0/__0_0.distcp",
            "run/checkpoints/checkpoint_{i}/pytorch_model_fsdp_0/.metadata",
            "run/checkpoints/checkpoint_{i}/random_states_0.pkl",
        ]],
        9,
    ),
    layout(
        "deepspeed",
        InPlace,
        &[
            &[
                "run/global_step{n}/mp_rank_00_model_states.pt",
                "run/global_step{n}/zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "run/latest!",
            ],
            &["run/global_step{n}/zero_pp_rank_1_mp_rank_00_optim_states.pt"],
        ],
        9,
    ),
    layout(
        "megatron",
        InPlace,
        &[
            &["run/iter_{n:7}/mp_rank_00/model_optim_rng.pt"],
            &["run/iter_{n:7}/mp_rank_01/model_optim_rng.pt"],
        ],
        9,
    ),
    layout(
        "torchtitan",
        InPlace,
        &[&["out/step-{n}/__0_0.distcp", "out/step-{n}/.metadata"], &["out/step-{n}/__1_0.distcp"]],
        3,
    ),
    layout("lightning", Renamed, &[&["run/epoch={i}-step={n}.ckpt"]], 1),
    layout("lightning, metric", InPlace, &[&["run/epoch={i:2}-val_loss={m}.ckpt"]], 3),
    layout("composer", InPlace, &[&["run/ep{i}-ba{n}-rank0.pt"], &["run/ep{i}-ba{n}-rank1.pt"]], 9),
    layout(
        "orbax",
        Directory,
        &[&[
            "{n}/_CHECKPOINT_METADATA",
            "{n}/default/d/{h}",
            "{n}/default/d/{g}",
            "{n}/default/manifest.ocdbt",
        ]],
        2,
    ),
    layout("maxtext", Directory, &[&["{n}/items/d/{h}", "{n}/items/manifest.ocdbt"]], 9),
    layout("torch.save", InPlace, &[&["model_{i}.pt"]], 9),
    layout("torch.save of two", InPlace, &[&["model_{i}.pt", "optim_{i}.pt"]], 9),
    layout("keras", InPlace, &[&["run/weights.{i:2}-{m}.keras"]], 9),
    layout("ultralytics", InPlace, &[&["weights/epoch{n}.pt", "weights/last.pt!"]], 9),
    layout(
        "tensorflow",
        InPlace,
        &[&["run/ckpt-{i}.data-00000-of-00001", "run/ckpt-{i}.index", "run/checkpoint!"]],
        3,
    ),
    layout("content-hashed files", InPlace, &[&["snap/ck-{n}-{h}.pt"]], 9),
    layout("rank directories", InPlace, &[&["rank0/step_{n}.pt"], &["rank1/step_{n}.pt"]], 9),
    layout(
        "two processes, plain",
        InPlace,
        &[&["ck-{n}/r0p0", "ck-{n}/r0p1"], &["ck-{n}/r1p0"]],
        9,
    ),
    layout("lammps", InPlace, &[&["melt.restart.{n}"]], 9),
    layout(
        "lammps, per processor",
        InPlace,
        &[&["melt.restart.{n}.base", "melt.restart.{n}.0"], &["melt.restart.{n}.1"]],
        9,
    ),
    layout("openfoam", InPlace, &[&["{t}/U", "{t}/p", "{t}/uniform/time"]], 9),
    layout(
        "openfoam, decomposed",
        InPlace,
        &[&["processor0/{t}/U", "processor0/{t}/p"], &["processor1/{t}/U", "processor1/{t}/p"]],
        9,
    ),
    layout("namd", InPlace, &[&["eq.{n}.coor", "eq.{n}.vel", "eq.{n}.xsc"]], 9),
    layout(
        "amrex",
        Directory,
        &[&["chk{n:5}/Header", "chk{n:5}/Level_0/Cell_D_00000", "chk{n:5}/Level_0/Cell_D_00001"]],
        9,
    ),
    layout("flash", InPlace, &[&["sedov_hdf5_chk_{i:4}"]], 9),
    layout(
        "gadget",
        InPlace,
        &[&["snapdir_{i:3}/snapshot_{i:3}.0.hdf5"], &["snapdir_{i:3}/snapshot_{i:3}.1.hdf5"]],
        9,
    ),
    layout(
        "enzo",
        InPlace,
        &[&["DD{i:4}/data{i:4}", "DD{i:4}/data{i:4}.cpu0000", "DD{i:4}/data{i:4}.hierarchy"]],
        9,
    ),
    layout("wrf", InPlace, &[&["wrfrst_d01_{d}_00:00:00", "wrfrst_d02_{d}_00:00:00"]], 9),
    layout(
        "cesm",
        InPlace,
        &[&["case.cam.r.{d}-00000.nc", "case.clm2.r.{d}-00000.nc", "case.cpl.r.{d}-00000.nc"]],
        9,
    ),
    layout("nek5000", InPlace, &[&["eddy0.f{i:5}"]], 9),
    layout("athena", InPlace, &[&["blast.{i:5}.rst"]], 9),
    layout(
        "cactus",
        InPlace,
        &[&["checkpoint.chkpt.it_{n}.file_0.h5"], &["checkpoint.chkpt.it_{n}.file_1.h5"]],
        9,
    ),
    layout(
        "picongpu",
        InPlace,
        &[&["checkpoints/checkpoint_{n}.bp/data.0", "checkpoints/checkpoint_{n}.bp/md.idx"]],
        9,
    ),
    layout("cp2k", InPlace, &[&["H2O-1_{n}.restart", "H2O-1.ener!"]], 9),
    layout(
        "quantum espresso",
        InPlace,
        &[&["tmp/si_{i}.save/charge-density.dat", "tmp/si_{i}.save/data-file-schema.xml"]],
        9,
    ),
    layout("hoomd", InPlace, &[&["restart-{n}.gsd"]], 9),
    layout("times with decimals", InPlace, &[&["out_{t}.h5"]], 9),
    layout(
        "specfem",
        InPlace,
        &[&["dump_all_arrays_proc000000_{n:6}.bin"], &["dump_all_arrays_proc000001_{n:6}.bin"]],
        9,
    ),
    layout("hydra run directories", InPlace, &[&["outputs/2026-11-28/10-15-00/ckpt_{n}.pt"]], 9),
];

/// One operation of a process.
#[derive(Clone, Debug)]
enum Operation {
    Write(FilePath),
    Close(FilePath),
    Rename(FilePath, FilePath),
    Remove(FilePath),
    /// The process has written its part of a step.
    Done(u64),
}

/// A run of a program, and what Cairn knows of it.
#[derive(Clone)]
struct World {
    tree: Tree,
    register: Register,
    now_ns: i64,
    next_inode: u32,
    run: u64,
    /// How many processes have written their part of each step.
    done: BTreeMap<u64, usize>,
    /// Steps whose removal has begun.
    removed: BTreeSet<u64>,
    /// Whether processes are at different steps: one that was written meanwhile hides for a while
    /// that an earlier one is whole.
    is_apart: bool,
}

impl Layout {
    /// Returns the final names of the files of a step, by process. Those that end with `!` are left
    /// out.
    fn names(&self, step: u64) -> Vec<Vec<String>> {
        let own = |files: &&[&'static str]| -> Vec<String> {
            files.iter().filter(|name| !name.ends_with('!')).map(|name| named(name, step)).collect()
        };
        self.files.iter().map(own).collect()
    }

    fn all(&self, step: u64) -> BTreeSet<FilePath> {
        self.names(step).into_iter().flatten().map(|name| path(&name)).collect()
    }

    /// Returns what a process does in a step.
    fn operations(&self, process: usize, step: u64) -> Vec<Operation> {
        use Operation::*;
        let mut operations = Vec::new();
        let top = |name: &str| name.split('/').next().unwrap_or_default().to_string();
        let is_own = |name: &&&str| !name.ends_with('!');
        let last_own = self.files[process].iter().rposition(|name| is_own(&name)).unwrap_or(0);
        for (index, name) in self.files[process].iter().enumerate() {
            let last = path(&named(name.trim_end_matches('!'), step));
            let text = last.to_string();
            let first = match self.way {
                _ if name.ends_with('!') => last.clone(),
                InPlace => last.clone(),
                Renamed => path(&format!("{text}.part")),
                Directory => path(&text.replacen(&top(&text), &(top(&text) + ".tmp"), 1)),
            };
            operations.extend([Write(first.clone()), Write(first.clone()), Close(first.clone())]);
            if self.way == Renamed && first != last {
                operations.push(Rename(first, last));
            }
            if index == last_own && self.way != Directory {
                operations.push(Done(step));
            }
        }
        if self.way == Directory {
            let top = top(&named(self.files[process][0], step));
            operations.push(Rename(path(&format!("{top}.tmp")), path(&top)));
            operations.push(Done(step));
        }
        if process == 0 && step > self.kept {
            operations.extend(self.all(step - self.kept).into_iter().map(Remove));
        }
        operations
    }
}

fn path(text: &str) -> FilePath {
    FilePath::parse(text.as_bytes()).expect("a path")
}

/// Returns the name of a file in the step with this index, from 1.
fn named(name: &str, index: u64) -> String {
    let (mut text, mut rest) = (String::new(), name.trim_end_matches('!'));
    while let Some((before, behind)) = rest.split_once('{') {
        let (field, after) = behind.split_once('}').expect("a closing brace");
        let (what, width) = field.split_once(':').unwrap_or((field, "0"));
        let width: usize = width.parse().expect("a width");
        text += before;
        text += &match what {
            "n" => format!("{:0width$}", index * 10),
            "i" => format!("{index:0width$}"),
            "t" => {
                let time = format!("{}.{:02}", index * 5 / 20, index * 5 % 20 * 5);
                time.trim_end_matches('0').trim_end_matches('.').to_string()
            }
            "m" => ["0.91", "0.55", "1.02", "0.48", "0.5", "0.47", "0.46", "0.451"]
                [index as usize % 8]
                .to_string(),
            "d" => format!("2026-11-{:02}", index + 3),
            "h" => format!("{:016x}", index.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            "g" => format!("{:016x}", index.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)),
            other => panic!("{other}"),
        };
        rest = after;
    }
    text + rest
}

impl World {
    fn new() -> World {
        World {
            tree: Tree::new(),
            register: Register::default(),
            now_ns: 1_000 * SECOND_NS,
            next_inode: 2,
            run: 1,
            done: BTreeMap::new(),
            removed: BTreeSet::new(),
            is_apart: false,
        }
    }

    fn node(&mut self, kind: Kind) -> Node {
        self.next_inode += 1;
        Node { written_ns: self.now_ns, ..Node::new(self.next_inode, kind) }
    }

    /// Notes that an entry of the directory above `path` changed, and makes what is missing.
    fn touch_above(&mut self, path: &FilePath) {
        let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_root()) else {
            return;
        };
        if !self.tree.contains_key(&parent) {
            self.touch_above(&parent);
            let node = self.node(Kind::Directory);
            self.tree.insert(parent.clone(), node);
        }
        let now_ns = self.now_ns;
        let node = self.tree.get_mut(&parent).expect("it was made");
        (node.written_ns, node.renamed) = (now_ns, false);
    }

    fn carry_out(&mut self, operation: &Operation, layout: &Layout) {
        let now_ns = self.now_ns;
        match operation {
            Operation::Write(path) => {
                if !self.tree.contains_key(path) {
                    self.touch_above(path);
                    let node = self.node(Kind::File);
                    self.tree.insert(path.clone(), node);
                }
                let node = self.tree.get_mut(path).expect("it was made");
                (node.unclean, node.torn) = (false, false);
                (node.open, node.written_ns, node.version) = (true, now_ns, node.version + 1);
            }
            Operation::Close(path) => {
                self.tree.get_mut(path).expect("it was written").open = false;
            }
            Operation::Rename(from, to) => {
                self.touch_above(from);
                self.touch_above(to);
                let moved: Vec<FilePath> = self.tree.keys().cloned().collect();
                for path in moved {
                    let Some(inner) = path.strip_prefix(from) else { continue };
                    let mut node = self.tree.remove(&path).expect("it is there");
                    if inner.is_root() && node.kind == Kind::Directory {
                        (node.renamed, node.written_ns) = (true, now_ns);
                    }
                    self.tree.insert(to.append(&inner), node);
                }
            }
            Operation::Remove(path) => {
                let of = (1..=STEPS * 2).find(|step| layout.all(*step).contains(path));
                self.removed.extend(of);
                if self.tree.remove(path).is_some() {
                    self.touch_above(path);
                    self.remove_empty(path);
                }
            }
            Operation::Done(step) => *self.done.entry(*step).or_default() += 1,
        }
    }

    /// Removes the directories above `path` that are empty.
    fn remove_empty(&mut self, path: &FilePath) {
        let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_root()) else {
            return;
        };
        let is_inside =
            |other: &FilePath| other.strip_prefix(&parent).is_some_and(|inner| !inner.is_root());
        if !self.tree.keys().any(is_inside) {
            self.tree.remove(&parent);
            self.touch_above(&parent);
            self.remove_empty(&parent);
        }
    }

    /// Looks at the files as the agent does.
    fn look(&mut self, run: Run) -> Vec<Set> {
        static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::of(&CheckpointPolicy::default()));
        let rules: &Rules = &RULES;
        let root = FilePath::root();
        let now_ns = self.now_ns;
        let survey = |register: &Register, tree: &Tree| {
            let moment = Moment {
                now_ns,
                ranks: None,
                run,
                alive_ns: now_ns,
                settle: Duration::from_secs(1),
                marks: &[],
                is_idle: false,
            };
            register.survey(&[(&root, tree)], rules, moment)
        };
        let mut sets = survey(&self.register, &self.tree);
        self.register.take(&sets, rules, now_ns);
        sets = survey(&self.register, &self.tree);
        if run == Run::Failed {
            self.register.abandon(&sets);
        }
        self.register.take(&sets, rules, now_ns);
        if run != Run::Running {
            self.register.end_run(self.run, now_ns);
        }
        sets
    }

    /// Ends all processes at once.
    fn kill(&mut self) {
        for node in self.tree.values_mut().filter(|node| node.open) {
            (node.open, node.unclean, node.torn) = (false, true, true);
        }
    }

    fn is_whole(&self, layout: &Layout, step: u64) -> bool {
        self.done.get(&step) == Some(&layout.files.len()) && !self.removed.contains(&step)
    }

    /// Compares what is said with what is.
    fn judge(&self, layout: &Layout, sets: &[Set], run: Run) -> Result<(), String> {
        let steps: Vec<(u64, BTreeSet<FilePath>)> =
            (1..=STEPS * 2).map(|step| (step, layout.all(step))).collect();
        let of = |set: &Set| -> Vec<(u64, &BTreeSet<FilePath>)> {
            let has =
                |all: &BTreeSet<FilePath>| set.members.iter().any(|it| all.contains(&it.path));
            steps.iter().filter(|(_, all)| has(all)).map(|(step, all)| (*step, all)).collect()
        };
        for set in sets {
            let members: BTreeSet<&FilePath> = set.members.iter().map(|it| &it.path).collect();
            let steps = of(set);
            if set.is_complete() {
                for (step, all) in &steps {
                    let has_all = all.iter().all(|path| members.contains(path));
                    if !(self.removed.contains(step) || has_all && self.is_whole(layout, *step)) {
                        return Err(format!(
                            "{} is said to be complete: {}",
                            set.name,
                            listed(&members)
                        ));
                    }
                }
            } else if let DrainProgress::Waiting(reason) | DrainProgress::Broken(reason) =
                &set.standing
            {
                let is_claimed = matches!(set.standing, DrainProgress::Broken(_));
                let is_false = steps.iter().any(|(step, _)| self.is_whole(layout, *step));
                if is_claimed && !reason.leaves_open() && is_false {
                    return Err(format!("{} is said to be incomplete: {reason}", set.name));
                }
                if run == Run::Succeeded && is_false {
                    return Err(format!("after a run that ended well, {}: {reason}", set.name));
                }
            }
            let name = set.name.to_string();
            let is_plain = !set.name.family.to_string().contains("{any}");
            let there = |path: &FilePath| path.to_string().starts_with(&name);
            if is_plain && !members.iter().any(|path| there(path)) {
                return Err(format!("{name} is no name: {}", listed(&members)));
            }
        }
        // All but the last whole step. A step that the run was killed behind waits for one more.
        let whole = steps.iter().filter(|(step, _)| self.is_whole(layout, *step));
        let mut followed: Vec<_> = whole.collect();
        let later = match run {
            Run::Succeeded => 0,
            _ if self.is_apart => followed.len(),
            _ => 1 + usize::from(self.run > 1),
        };
        followed.truncate(followed.len().saturating_sub(later));
        for (step, all) in followed {
            let has_all =
                |set: &&Set| all.iter().all(|path| set.members.iter().any(|it| it.path == *path));
            if !sets.iter().filter(has_all).any(Set::is_complete) {
                let said: Vec<String> = sets
                    .iter()
                    .filter(|set| of(set).iter().any(|(of, _)| of == step))
                    .map(|set| format!("{}: {:?}", set.name, set.standing))
                    .collect();
                return Err(format!("step {step} is not known to be whole: {said:?}"));
            }
        }
        Ok(())
    }
}

fn listed(paths: &BTreeSet<&FilePath>) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Runs the layout from a step on, and calls `judge` after each operation; it returns true to end
/// the run there.
fn run(
    world: &mut World,
    layout: &Layout,
    first: u64,
    dice: &mut Random,
    judge: &mut dyn FnMut(&mut World) -> bool,
) {
    let slowness = *dice.pick(&[1, 20, 2_000]);
    // Once it is known what a step has, processes may go on without each other.
    let waits_for = if dice.one_in(2) { STEPS } else { 2 };
    let all: Vec<u64> = (first..first + STEPS).collect();
    let (together, apart) = all.split_at(waits_for as usize);
    let rounds = together.iter().map(std::slice::from_ref).chain([apart]);
    for steps in rounds.filter(|steps| !steps.is_empty()) {
        let of =
            |process| steps.iter().flat_map(|step| layout.operations(process, *step)).collect();
        let mut left: Vec<Vec<Operation>> = (0..layout.files.len()).map(of).collect();
        left.iter_mut().for_each(|operations| operations.reverse());
        let slow = dice.below(left.len() as u64) as usize;
        world.is_apart = steps.len() > 1;
        while left.iter().any(|operations| !operations.is_empty()) {
            let mut process = dice.below(left.len() as u64) as usize;
            if process == slow && steps.len() > 1 && !dice.one_in(5) {
                process = dice.below(left.len() as u64) as usize;
            }
            let Some(operation) = left[process].pop() else { continue };
            world.now_ns += (1_000_000 + dice.below(99_000_000) as i64) * slowness / 10;
            world.carry_out(&operation, layout);
            if let Some(done @ Operation::Done(_)) = left[process].last() {
                world.carry_out(done, layout);
                left[process].pop();
            }
            if judge(world) {
                return;
            }
        }
        world.now_ns += (1 + dice.below(59) as i64) * SECOND_NS;
        world.is_apart = false;
        if judge(world) {
            return;
        }
    }
}

fn trial(layout: &Layout, seed: u64) -> Result<(), String> {
    let mut dice = Random::new(seed);
    let mut world = World::new();
    let mut operations = 0_u64;
    run(&mut world.clone(), layout, 1, &mut dice.clone(), &mut |_| {
        operations += 1;
        false
    });
    let killed_after = 1 + dice.clone().below(operations + 1);
    let mut said = Ok(());
    let mut count = 0_u64;
    run(&mut world, layout, 1, &mut dice, &mut |world| {
        let sets = world.look(Run::Running);
        said = world.judge(layout, &sets, Run::Running);
        count += 1;
        said.is_err() || count == killed_after
    });
    said.map_err(|said| format!("after {count} operations: {said}"))?;
    if killed_after > operations {
        let sets = world.look(Run::Succeeded);
        return world
            .judge(layout, &sets, Run::Succeeded)
            .map_err(|it| format!("at the end: {it}"));
    }
    world.kill();
    let sets = world.look(Run::Failed);
    world
        .judge(layout, &sets, Run::Failed)
        .map_err(|said| format!("after a kill behind {count} operations: {said}"))?;
    // The next run goes on behind the last whole step.
    let last = (1..=STEPS).filter(|step| world.is_whole(layout, *step)).max().unwrap_or(0);
    world.done.retain(|step, _| *step <= last);
    (world.run, world.now_ns) = (2, world.now_ns + 30 * SECOND_NS);
    let (mut said, mut count) = (Ok(()), 0_u64);
    run(&mut world, layout, last + 1, &mut dice, &mut |world| {
        let sets = world.look(Run::Running);
        said = world.judge(layout, &sets, Run::Running);
        count += 1;
        said.is_err()
    });
    said.map_err(|said| {
        format!("{count} operations after a kill behind {killed_after} operations: {said}")
    })?;
    let sets = world.look(Run::Succeeded);
    world.judge(layout, &sets, Run::Succeeded).map_err(|it| format!("at the second end: {it}"))
}

#[test]
fn words_about_the_checkpoints_of_real_programs_are_true_at_every_moment() {
    let mut failed = Vec::new();
    for layout in LAYOUTS {
        let lives = if soaking() { LIVES_IN_SOAK } else { LIVES };
        for seed in 0..environment_number(SEEDS_VARIABLE).unwrap_or(lives) {
            if let Err(said) = trial(layout, seed) {
                failed.push(format!("{}, seed {seed}, {said}", layout.name));
                break;
            }
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}
