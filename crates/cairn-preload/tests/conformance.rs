//! Compares Cairn with the kernel. The C program of `tests/conformance` plays the same cases in a
//! directory of a tmpfs and below the mount, at the same path, and prints one line per case. The
//! lines are compared.
//!
//! A case that may differ is listed in `conformance/differences.txt` with Cairn's outcome, below
//! the row of docs/SEMANTICS.md that documents it. The test fails if the case differs in another
//! way, or does not differ. Each family runs as an ordinary user. If the test runs as root,
//! `rights` and `modes` run as root, too, and some families run in a process that is root until
//! after its first calls (all of them with `CAIRN_SOAK`). `CAIRN_CONFORMANCE_ON=DIRECTORY` compares
//! with another file system than that of /dev/shm.

mod common;

use common::{Stage, errors, keeps_attributes, text};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// User and group id of an ordinary user.
const NOBODY: u32 = 65534;
/// Maximum number of differing cases that a failure prints.
const SHOWN_MAX: usize = 40;

/// Families that need extended attributes.
const WITH_ATTRIBUTES: [&str; 2] = ["extended", "rights"];

/// All families that an ordinary user plays.
const ALL_FAMILIES: [&str; 22] = [
    "paths",
    "paths_from_here",
    "directories_at",
    "opening",
    "pairs",
    "resolving",
    "descriptors",
    "bad_addresses",
    "offsets",
    "space",
    "holes",
    "modes",
    "times",
    "extended",
    "entries",
    "descriptions",
    "holding",
    "copying",
    "stdio",
    "mapping",
    "asynchronous",
    "waiting",
];

/// User that plays.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Player {
    Ordinary,
    Root,
    /// Root until after the first calls, then an ordinary user permanently.
    Setuid,
    /// Root until after the first calls, then temporarily an ordinary user: the real user stays
    /// root.
    Seteuid,
}

impl Player {
    /// The argument that tells the program how to change its user.
    fn becomes(self) -> Option<&'static str> {
        match self {
            Player::Ordinary | Player::Root => None,
            Player::Setuid => Some("setuid"),
            Player::Seteuid => Some("seteuid"),
        }
    }

    /// Whether the existing files must belong to root.
    fn owns_as_root(self) -> bool {
        self == Player::Root || !is_root()
    }
}

/// Name of each case and its outcome.
type Outcomes = BTreeMap<String, String>;

/// Scratch directory on the file system to compare with. Holds the directory under test, the store
/// and the programs.
struct Ground(PathBuf);

impl Ground {
    fn new(family: &str, player: Player) -> Ground {
        let shared = Path::new("/dev/shm");
        let fits =
            shared.is_dir() && (!WITH_ATTRIBUTES.contains(&family) || keeps_attributes(shared));
        let memory = if fits { shared.to_owned() } else { std::env::temp_dir() };
        let below = std::env::var_os("CAIRN_CONFORMANCE_ON").map_or(memory, PathBuf::from);
        let name = format!("conformance-{}-{family}-{player:?}", std::process::id());
        let ground = Ground(below.join(name));
        for part in ["", "store", "bin"] {
            ground.make(part, player);
        }
        ground
    }

    fn path(&self, part: &str) -> PathBuf {
        self.0.join(part)
    }

    fn make(&self, part: &str, player: Player) {
        let path = self.path(part);
        fs::create_dir(&path).expect("a scratch directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        if !player.owns_as_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may give it away");
        }
    }

    /// Copies a program to where an ordinary user can execute it.
    fn install(&self, program: &Path) -> PathBuf {
        let copy = self.path("bin").join(program.file_name().expect("a file"));
        fs::copy(program, &copy).expect("programs can be copied");
        copy
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(&self.0).output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|itself| std::os::unix::fs::MetadataExt::uid(&itself) == 0)
}

/// One run of the program.
struct Play<'a> {
    stage: &'a Stage,
    ground: &'a Ground,
    player: Player,
    /// A directory on another file system.
    outside: PathBuf,
}

impl Play<'_> {
    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = self.stage.command(program);
        command.args(arguments).env("CAIRN_STORE_ROOT", self.ground.path("store"));
        if self.player == Player::Ordinary && is_root() {
            // Also drops the supplementary groups.
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().expect("the program starts")
    }

    /// Plays a family on the file system and on Cairn, at the same path.
    fn both(&self, program: &Path, family: &str) -> [Outcomes; 2] {
        let program = self.ground.install(program);
        let cairn = self.ground.install(common::cairn());
        self.ground.install(&common::cairn().with_file_name("libcairn_preload.so"));
        let under_test = self.ground.path("here");
        let [program, here, outside] =
            [&program, &under_test, &self.outside].map(|path| path.to_str().expect("UTF-8"));
        self.ground.make("here", self.player);
        let played = [family, here, outside].into_iter().chain(self.player.becomes());
        let played: Vec<&str> = played.collect();
        let kernel = outcomes(&self.run(Path::new(program), &played));
        fs::remove_dir_all(&under_test).expect("what is left can be removed");
        let run = ["run", "--discard", "--mount", here, "--", program];
        let cairn = outcomes(&self.run(&cairn, &[&run[..], &played[..]].concat()));
        assert!(!under_test.exists(), "calls went past Cairn, to {here}");
        [kernel, cairn]
    }
}

fn outcomes(output: &Output) -> Outcomes {
    let printed = text(output);
    let last = printed.lines().next_back().unwrap_or_default();
    let is_whole = output.status.success() && last == "-- all played";
    assert!(is_whole, "{:?} after '{last}': {}", output.status, errors(output));
    let mut found = Outcomes::new();
    for line in printed.lines().filter(|line| *line != last) {
        let (case, outcome) = line.split_once(": ").expect("a case and what came of it");
        let before = found.insert(case.to_owned(), outcome.to_owned());
        assert_eq!(before, None, "two cases are called '{case}'");
    }
    found
}

/// A line of `differences.txt`: cases with another outcome on Cairn.
struct Difference {
    /// Players that the line applies to.
    players: &'static [Player],
    family: String,
    /// Name of the case; `*` matches anything.
    case: String,
    /// Outcome on Cairn; `*` matches anything.
    outcome: String,
}

/// Whether a row of docs/semantics, in a section about weakened or refused behaviour, has this
/// name: that of its file without number and ending.
fn is_row(name: &str) -> bool {
    let sections = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics");
    let sections = std::fs::read_dir(sections).expect("the page's sections").flatten();
    let names = sections.map(|section| (section.file_name(), section.path()));
    let mut weaker = names.filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.ends_with("-weakened") || name.ends_with("-refused")
    });
    weaker.any(|(_, section)| {
        std::fs::read_dir(section).expect("rows").flatten().any(|row| {
            let file = row.file_name().to_string_lossy().into_owned();
            file.split_once('-').is_some_and(|(_, file)| file.strip_suffix(".md") == Some(name))
        })
    })
}

/// Differences of a family. Each is below a line `[row]`, the name of a row of docs/semantics.
fn differences(family: &str, player: Player) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut row = "";
    for line in include_str!("conformance/differences.txt").lines() {
        if let Some(named) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            row = named;
            assert!(is_row(row), "docs/semantics has a row '{row}'");
        } else if !line.is_empty() && !line.starts_with('#') {
            assert!(!row.is_empty(), "'{line}' stands below no row");
            found.push(Difference::parse(line));
        }
    }
    found.retain(|difference| difference.family == family && difference.players.contains(&player));
    found
}

impl Difference {
    /// Parses `family: case: outcome`, preceded by the players if it does not apply to all.
    fn parse(line: &str) -> Difference {
        use Player::{Ordinary, Root, Seteuid, Setuid};
        const ALL: &[Player] = &[Ordinary, Root, Setuid, Seteuid];
        const SOME: [(&str, &[Player]); 3] = [
            ("root: ", &[Root]),
            ("ordinary: ", &[Ordinary, Setuid, Seteuid]),
            ("was root: ", &[Setuid, Seteuid]),
        ];
        let named = |(prefix, players)| line.strip_prefix(prefix).map(|rest| (players, rest));
        let (players, line) = SOME.into_iter().find_map(named).unwrap_or((ALL, line));
        let mut parts = line.splitn(3, ": ").map(str::to_owned);
        let mut part = || parts.next().unwrap_or_else(|| panic!("'{line}' has three parts"));
        Difference { players, family: part(), case: part(), outcome: part() }
    }
}

/// Whether `text` matches `pattern`, in which `*` matches anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(end)
}

/// Mismatches between two lists of outcomes that are not allowed.
fn complaints(kernel: &Outcomes, cairn: &Outcomes, allowed: &[Difference]) -> Vec<String> {
    let mut found = Vec::new();
    let mut used = vec![false; allowed.len()];
    for (case, expected) in kernel {
        let seen = cairn.get(case).map_or("not played", String::as_str);
        let listed = allowed.iter().position(|difference| matches(&difference.case, case));
        let as_listed = listed.is_some_and(|place| matches(&allowed[place].outcome, seen));
        if let Some(place) = listed {
            used[place] = true;
        }
        let complaint = match (listed, expected == seen) {
            (None, true) => continue,
            (Some(_), false) if as_listed => continue,
            (Some(_), true) => "does not differ any more, but differences.txt lists it",
            (Some(_), false) => "differs otherwise than differences.txt says",
            (None, false) => "differs",
        };
        found.push(format!("{case}\n  {complaint}\n  kernel: {expected}\n  Cairn:  {seen}"));
    }
    let unused = allowed.iter().zip(used).filter(|(_, used)| !used);
    found.extend(unused.map(|(listed, _)| format!("no case is called '{}'", listed.case)));
    found
}

/// Mismatches of a family.
fn complaints_of(family: &str, player: Player) -> Vec<String> {
    let stage = Stage::new();
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| Stage::compile_all("conformance"));
    let ground = Ground::new(family, player);
    // Cases also change the mode of the parent directory.
    let above = stage.plain();
    let outside = above.join("outside");
    fs::create_dir(&outside).expect("it is ours");
    if !player.owns_as_root() {
        for directory in [&above, &outside] {
            chown(directory, Some(NOBODY), Some(NOBODY)).expect("root may give it away");
        }
    }
    let play = Play { stage: &stage, ground: &ground, player, outside };
    let [kernel, cairn] = play.both(program, family);
    println!("{family} as {player:?}: {} cases", kernel.len());
    complaints(&kernel, &cairn, &differences(family, player))
}

/// Compares the families one after another.
fn conforms_as(families: &[&str], player: Player) {
    let wrong: Vec<String> = families
        .iter()
        .flat_map(|family| {
            let wrong = complaints_of(family, player).into_iter();
            wrong.map(move |complaint| format!("{family}: {complaint}"))
        })
        .collect();
    let shown = wrong.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} cases, as {player:?}:\n{shown}", wrong.len());
}

/// As `conforms_as`, for an ordinary user.
fn conforms(families: &[&str]) {
    conforms_as(families, Player::Ordinary);
}

#[test]
fn calls_on_paths_answer_as_the_kernel_does() {
    conforms(&["paths"]);
}

#[test]
fn calls_on_paths_without_a_directory_answer_as_the_kernel_does() {
    conforms(&["paths_from_here"]);
}

#[test]
fn calls_from_a_directory_answer_as_the_kernel_does() {
    conforms(&["directories_at"]);
}

#[test]
fn opening_and_pairs_of_names_answer_as_the_kernel_does() {
    conforms(&["opening", "pairs"]);
}

#[test]
fn ways_that_a_path_may_not_take_are_those_of_the_kernel() {
    conforms(&["resolving"]);
}

#[test]
fn calls_on_descriptors_answer_as_the_kernel_does() {
    conforms(&["descriptors"]);
}

#[test]
fn calls_with_bad_addresses_answer_as_the_kernel_does() {
    conforms(&["bad_addresses"]);
}

#[test]
fn offsets_and_space_answer_as_the_kernel_does() {
    conforms(&["offsets", "space", "holes"]);
}

#[test]
fn modes_times_and_extended_attributes_answer_as_the_kernel_does() {
    conforms(&["modes", "times", "extended"]);
    if is_root() {
        conforms_as(&["modes"], Player::Root);
    }
}

/// Only root can become other users, whose rights are compared.
#[test]
fn rights_are_those_that_the_kernel_gives() {
    if is_root() {
        conforms_as(&["rights"], Player::Root);
    }
}

#[test]
fn entries_descriptions_and_copies_answer_as_the_kernel_does() {
    conforms(&["entries", "descriptions", "holding", "copying"]);
}

#[test]
fn streams_of_the_c_library_answer_as_the_kernel_does() {
    conforms(&["stdio"]);
}

#[test]
fn files_are_mapped_as_the_kernel_maps_them() {
    conforms(&["mapping", "mapped_private"]);
}

#[test]
fn what_is_mapped_answers_as_the_kernel_does() {
    conforms(&["mapped_shared", "mapped_to_read"]);
}

#[test]
fn requests_and_waiting_answer_as_the_kernel_does() {
    conforms(&["asynchronous", "waiting"]);
}

/// Plays all families with `CAIRN_SOAK`, otherwise those in which rights matter most.
#[test]
fn processes_that_were_root_are_answered_as_the_kernel_answers_them() {
    if !is_root() {
        return;
    }
    let all = std::env::var_os("CAIRN_SOAK").is_some();
    let families: &[&str] = match all {
        true => &ALL_FAMILIES,
        false => &["opening", "modes", "times", "extended", "entries"],
    };
    for player in [Player::Seteuid, Player::Setuid] {
        conforms_as(families, player);
    }
}

fn outcomes_of(pairs: &[(&str, &str)]) -> Outcomes {
    pairs.iter().map(|(case, outcome)| ((*case).to_owned(), (*outcome).to_owned())).collect()
}

#[test]
fn difference_is_planted_then_it_is_found_and_a_stale_one_as_well() {
    let kernel = outcomes_of(&[("a", "0"), ("b of x", "0"), ("c", "0"), ("d", "0")]);
    let cairn = outcomes_of(&[("a", "1"), ("b of x", "-1 EIO at 3"), ("c", "0")]);
    let allowed = ["f: b of *: -1 EIO*", "f: c: -1", "f: e: 0"].map(Difference::parse);
    let found: Vec<String> = complaints(&kernel, &cairn, &allowed);
    let starts = ["a\n  differs", "c\n  does not differ", "d\n  differs", "no case is called 'e'"];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    assert!(found.iter().zip(starts).all(|(found, start)| found.starts_with(start)), "{found:?}");
}
