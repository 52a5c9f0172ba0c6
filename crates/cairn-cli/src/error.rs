//! Everything the command can have to complain about, and the exit code for it.
//!
//! Must stay true: each message is one line that says what failed, on which file, why, and what to
//! do; exit code 2 means that the request itself was refused and nothing was created, lost or
//! overwritten.

use cairn_agent::model::error::why;
use cairn_agent::model::holder::Holder;
use cairn_device::nvme::shared::RemotePath;
use cairn_device::{StoreError, nvme};
use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Result of a command.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The request was refused.
pub const EXIT_USAGE: i32 = 2;
/// Damage was left as it is (of `cairn fsck` alone, as of fsck(8)).
pub const EXIT_NOT_REPAIRED: i32 = 4;
/// Something failed while it was carried out.
pub const EXIT_FAILURE: i32 = 1;
/// The program succeeded, but its files could not be drained (`EX_TEMPFAIL`: it can be repeated).
pub const EXIT_DRAIN: i32 = 75;
/// The program cannot be executed.
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
/// The program does not exist.
pub const EXIT_NOT_FOUND: i32 = 127;

/// Why a command cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A size that is none.
    #[error("{text:?} is not a size; write a number and a unit, as in 8G or 512MiB")]
    Size {
        /// What was given.
        text: String,
    },
    /// A length of time that is none.
    #[error("{text:?} is not a length of time; {expected}")]
    Length {
        /// What was given.
        text: String,
        /// What is.
        expected: String,
    },
    /// A tier that is none.
    #[error(
        "{text:?} is not a tier; write ram, file:PATH, dax:PATH, block:DEVICE or nvme-tcp://HOST/NQN, and a size if you \
         like, as in ram:8G, file:/nvme/cairn:100G, dax:/pmem/cairn:50G, block:/dev/nvme0n1 or \
         nvme-tcp://storage1/nqn.2026-11.io.cairn:target?nsid=1&size=100G"
    )]
    Tier {
        /// What was given.
        text: String,
    },
    /// Too many tiers.
    #[error("{count} tiers were given; a store has at most {most}")]
    TooManyTiers {
        /// How many.
        count: usize,
        /// How many are allowed.
        most: usize,
    },
    /// Two tiers in one place.
    #[error("{text:?} is the second tier in one place; give it once")]
    TierTwice {
        /// What was given.
        text: String,
    },
    /// A tier's file that cannot be made, or a device that cannot be used.
    #[error("the tier {} {problem}; {advice}", RemotePath::shown(path))]
    TierFile {
        /// The file or device.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: Cow<'static, str>,
    },
    /// A file for metadata without a size.
    #[error(
        "--meta-tier {text} says no size; write {text}:SIZE, see --help for how much metadata need"
    )]
    MetaWithoutSize {
        /// What was given.
        text: String,
    },
    /// A memory node that this machine does not have.
    #[error(
        "this machine has no memory node {node}; it has {nodes}: --numa node:N, local or interleave"
    )]
    NoSuchNode {
        /// What was asked for.
        node: u32,
        /// Those there are.
        nodes: String,
    },
    /// A tier too small for anything.
    #[error("a tier of {bytes} bytes is too small; give at least {least_bytes}")]
    TierTooSmall {
        /// What was asked for.
        bytes: u64,
        /// What is needed.
        least_bytes: u64,
    },
    /// No room for the metadata of the other tiers.
    #[error(
        "the metadata of these tiers need {least}, and --meta-tier {given} has less; give it at least \
         that, and more for more than a thousand files"
    )]
    MetaTooSmall {
        /// What was given.
        given: String,
        /// What is needed.
        least: String,
    },
    /// A tier larger than the memory.
    #[error(
        "a RAM tier of {wanted} is larger than {of_what}, {available}; give a smaller --tier \
         ram:SIZE"
    )]
    TierTooLarge {
        /// What was asked for.
        wanted: String,
        /// What limits it.
        of_what: String,
        /// What there is.
        available: String,
    },
    /// Tiers larger than the quota.
    #[error(
        "the tiers have {tiers} together, more than the quota of {quota}; give smaller ones, or another --quota"
    )]
    Quota {
        /// What they have.
        tiers: String,
        /// What they may have.
        quota: String,
    },
    /// A mount prefix that is not absolute and plain.
    #[error("the mount prefix {mount:?} {problem}; give an absolute path, as in --mount /cairn")]
    Mount {
        /// What was given.
        mount: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A mount prefix that exists.
    #[error(
        "the mount prefix {mount} would hide what exists there; choose another with --mount, or \
         add --force"
    )]
    MountHides {
        /// The prefix.
        mount: String,
    },
    /// The persist directory cannot be used.
    #[error("the persist directory {} {problem}; {advice}", path.display())]
    Persist {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: &'static str,
    },
    /// The name of a job is not one.
    #[error(
        "{name:?} cannot name a job; use 1 to 48 letters, digits, '.', '_' or '-', beginning \
         with a letter or digit"
    )]
    JobName {
        /// What was given.
        name: String,
    },
    /// Another `cairn run` has the job.
    #[error(
        "job {job} is running already; wait for it, give another --job, or join it with: cairn \
         exec --job {job} -- COMMAND"
    )]
    Running {
        /// The job.
        job: String,
    },
    /// The store of a job that runs is to be removed.
    #[error(
        "job {job} is running already, and its store cannot be removed; end it first, or wait for it: cairn status {job}"
    )]
    InUse {
        /// The job.
        job: String,
    },
    /// Programs that a `cairn run` has left use the store that is to be removed.
    #[error(
        "the store of job {job} cannot be removed: {users} it, and what is written then would be lost; \
         end that first"
    )]
    Inhabited {
        /// The job.
        job: String,
        /// Who uses it, for people.
        users: String,
    },
    /// A store whose media failed is to be made again from them, and somebody uses it.
    #[error(
        "writing to the tier of job {job} failed, and {users} its store, which can be made again from the tier only \
         without them; nothing was changed: end them, and run it again"
    )]
    RenewedUnderPrograms {
        /// The job.
        job: String,
        /// Who uses it, for people.
        users: String,
    },
    /// A store whose media failed would lose what is complete if it were made again from them.
    #[error(
        "writing to {tier} failed, and the store can only be made again from what is there; {files}, complete, would be lost with \
         the memory that has the data: {names}; nothing was changed: bring that to safety with {drain}, or give it up with --yes, \
         and run it again"
    )]
    NotOnMedia {
        /// The tier with the metadata.
        tier: String,
        /// How many, for people.
        files: String,
        /// Their names.
        names: String,
        /// The command that does that.
        drain: String,
    },
    /// The rank of this node that made the store for all could not fill it.
    #[error(
        "job {job} has no store: the rank of this node that was to fill it could not: {reason}"
    )]
    NotFilled {
        /// The job.
        job: String,
        /// Why.
        reason: String,
    },
    /// Blocks were to move from what is durable to what is not.
    #[error(
        "--promote is for metadata in memory, and {tier} makes them durable; leave one of them out, \
         or add --meta-tier ram"
    )]
    Promote {
        /// Where metadata stand.
        tier: String,
    },
    /// An option says something else than the store that is resumed.
    #[error(
        "{option} {given} contradicts the store of job {job}, which was made with {stored}; \
         leave the option out, or choose another --job"
    )]
    Contradiction {
        /// The option.
        option: &'static str,
        /// What it says.
        given: String,
        /// What the store says.
        stored: String,
        /// The job.
        job: String,
    },
    /// What need not be kept is to be drained.
    #[error(
        "--discard contradicts the persist directory {}; leave one of them out",
        path.display()
    )]
    DiscardPersist {
        /// The directory.
        path: PathBuf,
    },
    /// What need not be kept is to be archived.
    #[error("--discard contradicts the archive {url}; leave one of them out")]
    DiscardArchive {
        /// `s3://BUCKET/PREFIX`.
        url: String,
    },
    /// There is no such store.
    #[error("there is no store of job {job} in {places}; see: cairn status")]
    NoStore {
        /// The job.
        job: String,
        /// Where it was looked for.
        places: String,
    },
    /// There is no store at all.
    #[error("there is no store in {places}; a store is made by: cairn run -- COMMAND")]
    NoStores {
        /// Where it was looked for.
        places: String,
    },
    /// It is not clear which store is meant.
    #[error("there are several stores ({jobs}); name one of them")]
    WhichStore {
        /// The jobs.
        jobs: String,
    },
    /// A store of this name exists.
    #[error(
        "job {job} has a store already; go on in it with: cairn run --job {job} -- COMMAND, or \
         remove it with: cairn rm {job}"
    )]
    StoreExists {
        /// The job.
        job: String,
    },
    /// A store directory without a description.
    #[error(
        "{} is not a complete store (it has no {}); remove the directory if nothing uses it",
        path.display(),
        cairn_agent::model::job::JOB_FILE,
    )]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// A store that this program must not or cannot use.
    #[error("the store cannot be used: {source}; {advice}")]
    Store {
        /// What is wrong.
        source: cairn_agent::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The configuration file.
    #[error("{}: {problem}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No plan of who writes where.
    #[error("cannot plan: {problem}; {advice}")]
    Plan {
        /// What is missing or wrong.
        problem: String,
        /// What to do.
        advice: &'static str,
    },
    /// Files that a job drained earlier landed elsewhere.
    #[error(
        "--map {given} contradicts what job {job} drained to that directory, with {stored}; leave the option out, or choose \
         another --persist"
    )]
    MappedOtherwise {
        /// The option's value.
        given: String,
        /// What it was.
        stored: String,
        /// The job.
        job: String,
    },
    /// Directories cannot land where `--map` says.
    #[error("--map {value}: {problem}")]
    Map {
        /// What was said.
        value: String,
        /// Why not.
        problem: String,
    },
    /// The value of an option, which may come from elsewhere.
    #[error("{option} is {value:?}, but must be {expected}")]
    Value {
        /// The option.
        option: &'static str,
        /// What it is.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Nothing can be advised from these figures.
    #[error("{0}")]
    Advice(cairn_agent::model::advise::Refused),
    /// Nobody knows what a checkpoint of this job costs.
    #[error(
        "job {job} has announced no complete checkpoint (cairn_checkpoint_begin and _end); say what one costs, as \
         in --checkpoint-cost 12s"
    )]
    NotMeasured {
        /// The job.
        job: String,
    },
    /// There is no terminal to draw on.
    #[error("cairn top draws on a terminal; for programs there is: cairn status --json")]
    NoTerminal,
    /// Nothing was recorded of a job.
    #[error("nothing is recorded of job {job}: there is no {}; give --persist where it was drained to", path.display())]
    NoTimeline {
        /// The job.
        job: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A job in which nothing happened.
    #[error("job {job} has read and written nothing yet")]
    NothingRecorded {
        /// The job.
        job: String,
    },
    /// A path in a store that is none.
    #[error("{text:?} is not a path in a store; write JOB:/path")]
    Path {
        /// What was given.
        text: String,
    },
    /// Neither or both sides of a copy are in a store.
    #[error(
        "exactly one of source and target must lie in a store, written JOB:/path; use cp(1) for \
         the rest"
    )]
    CopySides,
    /// A directory was named where a file is meant.
    #[error("{path} is a directory; add --recursive")]
    IsDirectory {
        /// The directory.
        path: String,
    },
    /// A target that is a directory or is missing one.
    #[error("cannot write {path}: {problem}")]
    Target {
        /// The target.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The same, where what is wrong does not say which option has it.
    #[error("{source}")]
    Setting {
        /// The option.
        option: &'static str,
        /// What is wrong.
        source: Box<Error>,
    },
    /// An option whose value means nothing.
    #[error("{option}: {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A pattern that is none.
    #[error("{pattern:?} is not a pattern: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing matches.
    #[error("no clean file matches {pattern:?} in job {job}; see: cairn ls {job}:/")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The job.
        job: String,
    },
    /// A store would lose what is only there.
    #[error(
        "the store of job {job} has files that are nowhere else ({files}); drain them with: \
         cairn drain {job} --persist DIR, or give them up with: cairn rm {job} --discard"
    )]
    WouldLose {
        /// The job.
        job: String,
        /// How many files.
        files: usize,
    },
    /// A store would lose what is only there and cannot be drained.
    #[error(
        "the store of job {job} has files that are nowhere else ({files}), {unclean} of them unclean: whoever wrote \
         these died, or could not write all, and they are never drained; list them with: cairn ls --recursive {job}:/, save them with: cairn cp, \
         or give them up with: cairn rm {job} --discard"
    )]
    WouldLoseUnclean {
        /// The job.
        job: String,
        /// How many files.
        files: usize,
        /// How many of them are unclean.
        unclean: u64,
    },
    /// A store would be removed before its checkpoints are archived.
    #[error(
        "the store of job {job} has checkpoints that are not in {url}: {reason}; send them with: cairn drain {job}, or give \
         them up with: cairn rm {job} --discard"
    )]
    NotArchived {
        /// The job.
        job: String,
        /// Its archive.
        url: String,
        /// Why they are not there.
        reason: String,
    },
    /// A store that was to be removed stays.
    #[error("the store of job {job} is kept: {why}")]
    NotFreed {
        /// The job.
        job: String,
        /// Why.
        why: String,
    },
    /// A run did not come back.
    #[error(
        "the run did not come back: it ended with exit code {code}; its store is kept: cairn ls --checkpoints {job}"
    )]
    Drill {
        /// The drill's job.
        job: String,
        /// How it ended.
        code: i32,
    },
    /// A run that ended before a drill had tested what it was to test.
    #[error(
        "the run ended before it was killed as often as was asked for ({kills} of {wanted} times); give shorter times \
         with --after, or fewer --kills"
    )]
    TooFewKills {
        /// How often it was killed.
        kills: u32,
        /// How often it was to be.
        wanted: u32,
    },
    /// A drill whose program had nothing to lose.
    #[error(
        "no file was in the store at any kill ({kills}), so that nothing was tested; have the program write its checkpoints below the prefix, \
         /cairn unless that was set, or kill it later, with --after"
    )]
    NothingAtStake {
        /// How often it was killed.
        kills: u32,
    },
    /// Somebody ended the drill.
    #[error("the drill was ended by signal {signal}; so was its run, and its store is removed")]
    DrillEnded {
        /// The signal.
        signal: i32,
    },
    /// Processes outlived their process group.
    #[error(
        "{processes} processes of the run have left its process group and live on; a drill kills the group only: start          them in it, or end them by hand"
    )]
    Undead {
        /// How many.
        processes: usize,
    },
    /// A new store is to be filled from nowhere.
    #[error("--stage fills the store from the persist directory; name that with --persist")]
    NothingToStage,
    /// The persist directory has files that this run would replace.
    #[error("{}", owned(path, owner, *is_own))]
    Owned {
        /// The directory.
        path: PathBuf,
        /// The job that drained them.
        owner: String,
        /// It is the job itself, started again.
        is_own: bool,
    },
    /// Whose files these are is known to the ranks alone.
    #[error(
        "--stage fills a tree that all processes share; with --scope rank each rank makes its own"
    )]
    StageOfRanks,
    /// There is nowhere to drain to.
    #[error("job {job} has no persist directory; name one: cairn drain {job} --persist DIR")]
    NoPersist {
        /// The job.
        job: String,
    },
    /// A drain ended with something left.
    #[error("{summary}")]
    NotDrained {
        /// What is left and why.
        summary: String,
    },
    /// No manifest in a directory.
    #[error(
        "{} has no {name}; only a directory that cairn drained to can be verified or restored",
        path.display(),
    )]
    NoManifest {
        /// The directory.
        path: PathBuf,
        /// The file looked for.
        name: String,
    },
    /// No checkpoint in an archive.
    #[error(
        "{url} has no checkpoint; what cairn run --archive URL archives there, cairn restore URL finds"
    )]
    NothingArchived {
        /// `s3://BUCKET/PREFIX`, with the job if that is known.
        url: String,
    },
    /// Only manifests of other jobs in a directory.
    #[error("{} has no manifest of job {job}, only of {jobs}; name one of these", path.display())]
    OtherManifests {
        /// The directory.
        path: PathBuf,
        /// The job looked for.
        job: String,
        /// The jobs that drained there.
        jobs: String,
    },
    /// It is not clear which manifest is meant.
    #[error("there are manifests of several jobs ({jobs}); name one with --job")]
    WhichManifest {
        /// The jobs.
        jobs: String,
    },
    /// Something is damaged.
    #[error("{damaged} of {checked} files are damaged or missing; {advice}")]
    Damage {
        /// How many.
        damaged: u64,
        /// Of how many.
        checked: u64,
        /// What to do.
        advice: &'static str,
    },
    /// The metadata of a durable tier is damaged.
    #[error("the tier {0} cannot be read: {source}; see: cairn fsck {0}", RemotePath::shown(path))]
    TierDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: cairn_core::Error,
    },
    /// A durable tier that cannot be made what it was.
    #[error("{} is damaged beyond repair, nothing was changed; {advice}", RemotePath::shown(path))]
    BeyondRepair {
        /// The file.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
    },
    /// A durable tier that could be repaired, but was not.
    #[error("{source}")]
    NotRepaired {
        /// Why.
        source: Box<Error>,
    },
    /// Nobody asked for calls to be counted.
    #[error("calls of job {job} were not counted; run it with --report-calls")]
    NotCounted {
        /// The job.
        job: String,
    },
    /// What is to be exported is nothing that can be.
    #[error("{text:?} cannot be exported; write ram:SIZE, file:PATH or block:DEVICE")]
    ExportKind {
        /// What was given.
        text: String,
    },
    /// What is to be exported cannot be opened.
    #[error("cannot export {export}: {}; a file must be there, with its size", why(source))]
    Export {
        /// What was given.
        export: String,
        /// What the system said.
        source: io::Error,
    },
    /// Secrets of hosts that cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Secrets {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: cairn_device::nvme::Error,
    },
    /// A name of a subsystem that is none.
    #[error("{text:?} is not the name of a subsystem; write one like nqn.2026-11.io.cairn:target")]
    Nqn {
        /// What was given.
        text: String,
    },
    /// Room for grants that is none.
    #[error("{text:?} is no room for grants; write ram:SIZE or dir:DIRECTORY:SIZE")]
    Room {
        /// What was given.
        text: String,
    },
    /// A target cannot be told anything.
    #[error("cannot reach the target at {}: {}; is it running with --control?", path.display(), why(source))]
    Control {
        /// Its control socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A target will not do what it was told.
    #[error("the target refuses: {reason}")]
    TargetRefused {
        /// Why.
        reason: String,
    },
    /// A name that a target has already, or that is not for subsystems with namespaces.
    #[error("there is another subsystem {text:?}; choose another name with --nqn")]
    NqnTaken {
        /// What was given.
        text: String,
    },
    /// An address that cannot be listened at.
    #[error("cannot listen at {address}: {}; choose another with {option}", why(source))]
    Listen {
        /// The option that names it.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A host that cannot be found.
    #[error("there is no host {text}: {}; write HOST or HOST:PORT", why(source))]
    Address {
        /// What was given.
        text: String,
        /// What the system said.
        source: io::Error,
    },
    /// A controller on another machine does not do as it should.
    #[error(
        "NVMe over TCP to {address}: {}; is there a target, and may this host use it?",
        why_remote(source)
    )]
    Remote {
        /// Where it is.
        address: SocketAddr,
        /// What is wrong.
        source: nvme::Error,
    },
    /// The interposer library is missing.
    #[error(
        "cannot find libcairn_preload.so (looked for {looked_for}); install it there or set \
         CAIRN_PRELOAD"
    )]
    NoPreload {
        /// Where it was looked for.
        looked_for: String,
    },
    /// Whether checkpoints are what was written could not be found out, or what is damaged of them
    /// not be put right.
    #[error(
        "the newest checkpoints of job {job} could not all be compared with their checksums, or put right: {reason}; nothing was \
         started: run it again when that is mended, or go on with what there is: --resume as-is"
    )]
    NotCompared {
        /// The job.
        job: String,
        /// Why.
        reason: String,
    },
    /// Nobody can say any more which files a store has.
    #[error(
        "job {job}: {found}; nothing was changed, and the store is kept{ways}; to give the store up: cairn rm {job} --discard"
    )]
    Damaged {
        /// The job.
        job: String,
        /// What was found.
        found: String,
        /// Where its files may be whole, for people.
        ways: String,
    },
    /// A job is to go on from its last image, and has none.
    #[error(
        "there is no whole image of job {job} in {persist} to go on from; nothing was changed: to go on with the store, leave out \
         --resume image"
    )]
    NoImage {
        /// The job.
        job: String,
        /// Where images are.
        persist: String,
    },
    /// A store cannot be left for its image.
    #[error(
        "what job {job} has in its store cannot be set aside for its last image: {reason}; nothing was started, and the store keeps \
         its files: mend that and run it again, or go on with the store: --resume as-is"
    )]
    NotLeft {
        /// The job.
        job: String,
        /// Why.
        reason: String,
    },
    /// A run was killed while it moved checkpoints, and nobody can go on with that.
    #[error(
        "a run of job {job} was killed while it put checkpoints right or set them aside, and that cannot be ended: {reason}; \
         nothing was started: run it again when that is mended"
    )]
    NotSettled {
        /// The job.
        job: String,
        /// Why.
        reason: String,
    },
    /// Programs would not be served.
    #[error(
        "files below the prefix cannot be served: {}: {reason}; install that again with the command, or start the \
         program all the same with CAIRN_RUN_PROBE=never", library.display()
    )]
    Unserved {
        /// The library that is loaded into them.
        library: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that programs are linked with is missing.
    #[error("cannot find {file} (looked for {looked_for}); it comes with: make install")]
    NotInstalled {
        /// The file.
        file: &'static str,
        /// Where it was looked for.
        looked_for: String,
    },
    /// The interposer library's path cannot stand in LD_PRELOAD.
    #[error(
        "{} cannot be preloaded: the dynamic linker splits its path at spaces and colons; move \
         it, or set CAIRN_PRELOAD",
        path.display(),
    )]
    PreloadPath {
        /// The library.
        path: PathBuf,
    },
    /// The program cannot be started.
    #[error("cannot execute {command}: {}", why(source))]
    Execute {
        /// The program.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {}", path.display(), why(source))]
    File {
        /// What was attempted, a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Of the layers below.
    #[error("{0}")]
    Agent(#[from] cairn_agent::Error),
}

/// What can be done about files that are there already.
fn owned(path: &std::path::Path, owner: &str, is_own: bool) -> String {
    let (path, ways) = (path.display(), "to begin anew after they are set aside: --fresh");
    match is_own {
        true => format!(
            "{path} has files of an earlier start of job {owner}; to go on from them: --stage; {ways}; to add files of other names: --shared"
        ),
        false => format!(
            "{path} belongs to job {owner}; to go on with that job: --job {owner} --stage; {ways}; to add files of other names: --shared; \
             else name another directory"
        ),
    }
}

/// The text of an error of NVMe, a system call's without its number.
fn why_remote(source: &nvme::Error) -> String {
    match source {
        nvme::Error::System { action, errno } => {
            format!("cannot {action}: {}", why(&io::Error::from_raw_os_error(errno.0)))
        }
        other => other.to_string(),
    }
}

impl Error {
    /// Pairs with `map_err`: the error is about the value of an option.
    pub fn of(option: &'static str) -> impl FnOnce(Error) -> Error {
        move |source| match source {
            // Said already, and closer to it.
            Error::Setting { .. } => source,
            _ => Error::Setting { option, source: Box::new(source) },
        }
    }

    /// The option whose value this is about, wherever that came from; or a key of the configuration
    /// file that has no option.
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            Error::Setting { option, .. }
            | Error::Value { option, .. }
            | Error::Option { option, .. }
            | Error::Contradiction { option, .. } => Some(option),
            Error::Map { .. } | Error::MappedOtherwise { .. } => Some("--map"),
            Error::Mount { .. } | Error::MountHides { .. } => Some("--mount"),
            Error::MetaWithoutSize { .. } | Error::MetaTooSmall { .. } => Some("--meta-tier"),
            Error::NoSuchNode { .. } => Some("--numa"),
            Error::Quota { .. } => Some("--quota"),
            Error::Promote { .. } => Some("--promote"),
            Error::DiscardPersist { .. } | Error::DiscardArchive { .. } => Some("--discard"),
            Error::NothingToStage | Error::StageOfRanks => Some("--stage"),
            Error::Owned { .. } => Some("--persist"),
            _ => None,
        }
    }

    /// Who keeps a store from being used, if that is the matter.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Error::Agent(cairn_agent::Error::Held { holder, .. })
            | Error::Store { source: cairn_agent::Error::Held { holder, .. }, .. } => Some(holder),
            _ => None,
        }
    }

    /// The process's exit code for this error.
    pub fn exit_code(&self) -> i32 {
        // Every variant is named: whoever adds one decides whether anything was changed by then.
        match self {
            Error::Setting { source, .. } => source.exit_code(),
            Error::Execute { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                EXIT_NOT_FOUND
            }
            Error::Execute { .. } => EXIT_NOT_EXECUTABLE,
            Error::NotDrained { .. } => EXIT_DRAIN,
            Error::Agent(cairn_agent::Error::NoCredentials { .. })
            | Error::Agent(cairn_agent::Error::Owned { .. }) => EXIT_USAGE,
            Error::DrillEnded { signal } => 128 + signal,
            Error::BeyondRepair { .. } | Error::NotRepaired { .. } => EXIT_NOT_REPAIRED,
            Error::NoMatch { .. }
            | Error::NotFreed { .. }
            | Error::NotFilled { .. }
            | Error::Drill { .. }
            | Error::TooFewKills { .. }
            | Error::NothingAtStake { .. }
            | Error::Undead { .. }
            | Error::Damage { .. }
            | Error::TierDamaged { .. }
            | Error::NoPreload { .. }
            | Error::NotInstalled { .. }
            | Error::Unserved { .. }
            | Error::NotCompared { .. }
            | Error::NotSettled { .. }
            | Error::PreloadPath { .. }
            | Error::Listen { .. }
            | Error::Control { .. }
            | Error::TargetRefused { .. }
            | Error::Remote { .. }
            | Error::File { .. }
            | Error::Agent(_) => EXIT_FAILURE,
            Error::Size { .. }
            | Error::Length { .. }
            | Error::Tier { .. }
            | Error::TooManyTiers { .. }
            | Error::TierTwice { .. }
            | Error::TierFile { .. }
            | Error::MetaWithoutSize { .. }
            | Error::NoSuchNode { .. }
            | Error::TierTooSmall { .. }
            | Error::MetaTooSmall { .. }
            | Error::TierTooLarge { .. }
            | Error::Quota { .. }
            | Error::Mount { .. }
            | Error::MountHides { .. }
            | Error::Persist { .. }
            | Error::JobName { .. }
            | Error::Running { .. }
            | Error::InUse { .. }
            | Error::Inhabited { .. }
            | Error::RenewedUnderPrograms { .. }
            | Error::NotOnMedia { .. }
            | Error::Promote { .. }
            | Error::Contradiction { .. }
            | Error::DiscardPersist { .. }
            | Error::DiscardArchive { .. }
            | Error::NoStore { .. }
            | Error::NoStores { .. }
            | Error::WhichStore { .. }
            | Error::StoreExists { .. }
            | Error::NotAStore { .. }
            | Error::Store { .. }
            | Error::Configuration { .. }
            | Error::Plan { .. }
            | Error::MappedOtherwise { .. }
            | Error::Map { .. }
            | Error::Value { .. }
            | Error::Advice(..)
            | Error::NotMeasured { .. }
            | Error::NoTerminal
            | Error::NoTimeline { .. }
            | Error::NothingRecorded { .. }
            | Error::Path { .. }
            | Error::CopySides
            | Error::IsDirectory { .. }
            | Error::Target { .. }
            | Error::Option { .. }
            | Error::Pattern { .. }
            | Error::WouldLose { .. }
            | Error::WouldLoseUnclean { .. }
            | Error::NotArchived { .. }
            | Error::NothingToStage
            | Error::Owned { .. }
            | Error::StageOfRanks
            | Error::NoPersist { .. }
            | Error::NoManifest { .. }
            | Error::NothingArchived { .. }
            | Error::OtherManifests { .. }
            | Error::WhichManifest { .. }
            | Error::NotCounted { .. }
            | Error::ExportKind { .. }
            | Error::Export { .. }
            | Error::Secrets { .. }
            | Error::Nqn { .. }
            | Error::Room { .. }
            | Error::NqnTaken { .. }
            | Error::Address { .. }
            | Error::Damaged { .. }
            | Error::NoImage { .. }
            | Error::NotLeft { .. } => EXIT_USAGE,
        }
    }

    /// Whether a file or directory was missing: of a store, because it was removed a moment ago.
    pub fn is_about_nothing_there(&self) -> bool {
        match self {
            Error::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Error::Store { source, .. } | Error::Agent(source) => is_about_nothing(source),
            Error::NotAStore { .. } => true,
            Error::Setting { source, .. } => source.is_about_nothing_there(),
            _ => false,
        }
    }

    /// Pairs with `map_err`: the error of `action` on `path`.
    pub fn file<E: Into<io::Error>>(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(E) -> Error + use<E> {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source: source.into() }
    }
}

fn is_about_nothing(error: &cairn_agent::Error) -> bool {
    match error {
        cairn_agent::Error::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
        cairn_agent::Error::Namespace(error) => error.errno == libc::ENOENT,
        _ => false,
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        Error::Agent(error.into())
    }
}
