//! Errors of the commands and their exit codes.
//!
//! Invariant: each message is one line that says what failed, on which file, why, and what to do.
//! Exit code 2 means that the request itself was refused and nothing was created, lost or
//! overwritten.

use cairn_agent::model::error::why;
use cairn_agent::model::holder::Holder;
use cairn_device::StoreError;
use cairn_nvme as nvme;
use cairn_nvme::shared::RemotePath;
use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Result of a command.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Exit code: the request was refused.
pub const EXIT_USAGE: i32 = 2;
/// Exit code of `cairn fsck`, as in fsck(8): damage was left unrepaired.
pub const EXIT_NOT_REPAIRED: i32 = 4;
/// Exit code: an operation failed.
pub const EXIT_FAILURE: i32 = 1;
/// Exit code: the program succeeded, but its files could not be drained (`EX_TEMPFAIL`: the drain
/// can be repeated).
pub const EXIT_DRAIN: i32 = 75;
/// Exit code: the program cannot be executed.
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
/// Exit code: the program does not exist.
pub const EXIT_NOT_FOUND: i32 = 127;

/// Why a command cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a size.
    #[error("{text:?} is not a size; write a number and a unit, as in 8G or 512MiB")]
    Size {
        /// Value that the user gave.
        text: String,
    },
    /// Not a duration.
    #[error("{text:?} is not a length of time; {expected}")]
    Length {
        /// Value that the user gave.
        text: String,
        /// What is expected.
        expected: String,
    },
    /// Not a tier.
    #[error(
        "{text:?} is not a tier; write ram, file:PATH, dax:PATH, block:DEVICE or nvme-tcp://HOST/NQN, and a size if you \
         like, as in ram:8G, file:/nvme/cairn:100G, dax:/pmem/cairn:50G, block:/dev/nvme0n1 or \
         nvme-tcp://storage1/nqn.2026-11.io.cairn:target?nsid=1&size=100G"
    )]
    Tier {
        /// Value that the user gave.
        text: String,
    },
    /// Too many tiers.
    #[error("{count} tiers were given; a store has at most {most}")]
    TooManyTiers {
        /// Number of tiers.
        count: usize,
        /// Maximum number of tiers.
        most: usize,
    },
    /// Two tiers in the same place.
    #[error("{text:?} is the second tier in one place; give it once")]
    TierTwice {
        /// Value that the user gave.
        text: String,
    },
    /// A tier's file that cannot be created, or a device that cannot be used.
    #[error("the tier {} {problem}; {advice}", RemotePath::shown(path))]
    TierFile {
        /// The file or device.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// Advice.
        advice: Cow<'static, str>,
    },
    /// A file for metadata without a size.
    #[error(
        "--meta-tier {text} says no size; write {text}:SIZE, see --help for how much metadata need"
    )]
    MetaWithoutSize {
        /// Value that the user gave.
        text: String,
    },
    /// A NUMA node that this machine does not have.
    #[error(
        "this machine has no memory node {node}; it has {nodes}: --numa node:N, local or interleave"
    )]
    NoSuchNode {
        /// Requested node.
        node: u32,
        /// Existing nodes.
        nodes: String,
    },
    /// A tier below the minimum size.
    #[error("a tier of {bytes} bytes is too small; give at least {least_bytes}")]
    TierTooSmall {
        /// Requested size in bytes.
        bytes: u64,
        /// Minimum size in bytes.
        least_bytes: u64,
    },
    /// Too little space for the metadata of the other tiers.
    #[error(
        "the metadata of these tiers need {least}, and --meta-tier {given} has less; give it at least \
         that, and more for more than a thousand files"
    )]
    MetaTooSmall {
        /// Value that the user gave.
        given: String,
        /// Minimum size.
        least: String,
    },
    /// A tier larger than the memory.
    #[error(
        "a RAM tier of {wanted} is larger than {of_what}, {available}; give a smaller --tier \
         ram:SIZE"
    )]
    TierTooLarge {
        /// Requested size.
        wanted: String,
        /// The limit.
        of_what: String,
        /// Available size.
        available: String,
    },
    /// Tiers larger than the quota.
    #[error(
        "the tiers have {tiers} together, more than the quota of {quota}; give smaller ones, or another --quota"
    )]
    Quota {
        /// Size of the tiers.
        tiers: String,
        /// The quota.
        quota: String,
    },
    /// A mount prefix that is not a plain absolute path.
    #[error("the mount prefix {mount:?} {problem}; give an absolute path, as in --mount /cairn")]
    Mount {
        /// Value that the user gave.
        mount: String,
        /// The problem.
        problem: &'static str,
    },
    /// A mount prefix that exists in the file system.
    #[error(
        "the mount prefix {mount} would hide what exists there; choose another with --mount, or \
         add --force"
    )]
    MountHides {
        /// The prefix.
        mount: String,
    },
    /// A persist directory that cannot be used.
    #[error("the persist directory {} {problem}; {advice}", path.display())]
    Persist {
        /// The directory.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// Advice.
        advice: &'static str,
    },
    /// An invalid job name.
    #[error(
        "{name:?} cannot name a job; use 1 to 48 letters, digits, '.', '_' or '-', beginning \
         with a letter or digit"
    )]
    JobName {
        /// Value that the user gave.
        name: String,
    },
    /// Another `cairn run` holds the job.
    #[error(
        "job {job} is running already; wait for it, give another --job, or join it with: cairn \
         exec --job {job} -- COMMAND"
    )]
    Running {
        /// The job.
        job: String,
    },
    /// Removal of the store of a running job.
    #[error(
        "job {job} is running already, and its store cannot be removed; end it first, or wait for it: cairn status {job}"
    )]
    InUse {
        /// The job.
        job: String,
    },
    /// Removal of a store that programs of an ended `cairn run` still use.
    #[error(
        "the store of job {job} cannot be removed: {users} it, and what is written then would be lost; \
         end that first"
    )]
    Inhabited {
        /// The job.
        job: String,
        /// Its users, as text.
        users: String,
    },
    /// A store must be rebuilt from its media after a write error, but programs use it.
    #[error(
        "writing to the tier of job {job} failed, and {users} its store, which can be made again from the tier only \
         without them; nothing was changed: end them, and run it again"
    )]
    RenewedUnderPrograms {
        /// The job.
        job: String,
        /// Its users, as text.
        users: String,
    },
    /// A rebuild from the media after a write error would lose complete files.
    #[error(
        "writing to {tier} failed, and the store can only be made again from what is there; {files}, complete, would be lost with \
         the memory that has the data: {names}; nothing was changed: bring that to safety with {drain}, or give it up with --yes, \
         and run it again"
    )]
    NotOnMedia {
        /// Tier of the metadata.
        tier: String,
        /// Number of files, as text.
        files: String,
        /// Names of the files.
        names: String,
        /// Command that drains them.
        drain: String,
    },
    /// The rank of this node that created the shared store could not fill it.
    #[error(
        "job {job} has no store: the rank of this node that was to fill it could not: {reason}"
    )]
    NotFilled {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// `--promote` would move blocks from a durable tier to memory.
    #[error(
        "--promote is for metadata in memory, and {tier} makes them durable; leave one of them out, \
         or add --meta-tier ram"
    )]
    Promote {
        /// Tier of the metadata.
        tier: String,
    },
    /// An option contradicts the store that is resumed.
    #[error(
        "{option} {given} contradicts the store of job {job}, which was made with {stored}; \
         leave the option out, or choose another --job"
    )]
    Contradiction {
        /// The option.
        option: &'static str,
        /// Its value.
        given: String,
        /// Value of the store.
        stored: String,
        /// The job.
        job: String,
    },
    /// `--discard` together with a persist directory.
    #[error(
        "--discard contradicts the persist directory {}; leave one of them out",
        path.display()
    )]
    DiscardPersist {
        /// The directory.
        path: PathBuf,
    },
    /// `--discard` together with an archive.
    #[error("--discard contradicts the archive {url}; leave one of them out")]
    DiscardArchive {
        /// `s3://BUCKET/PREFIX`.
        url: String,
    },
    /// The job has no store.
    #[error("there is no store of job {job} in {places}; see: cairn status")]
    NoStore {
        /// The job.
        job: String,
        /// Places that were searched.
        places: String,
    },
    /// There is no store at all.
    #[error("there is no store in {places}; a store is made by: cairn run -- COMMAND")]
    NoStores {
        /// Places that were searched.
        places: String,
    },
    /// Several stores match.
    #[error("there are several stores ({jobs}); name one of them")]
    WhichStore {
        /// The jobs.
        jobs: String,
    },
    /// The job has a store already.
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
    /// A store that cannot be used.
    #[error("the store cannot be used: {source}; {advice}")]
    Store {
        /// The cause.
        source: cairn_agent::Error,
        /// Advice.
        advice: &'static str,
    },
    /// An error in a settings or description file.
    #[error("{}: {problem}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// No plan is possible.
    #[error("cannot plan: {problem}; {advice}")]
    Plan {
        /// What is missing or wrong.
        problem: String,
        /// Advice.
        advice: &'static str,
    },
    /// The mapping differs from the one with which the job drained earlier.
    #[error(
        "--map {given} contradicts what job {job} drained to that directory, with {stored}; leave the option out, or choose \
         another --persist"
    )]
    MappedOtherwise {
        /// Value of the option.
        given: String,
        /// Earlier mapping.
        stored: String,
        /// The job.
        job: String,
    },
    /// An invalid mapping.
    #[error("--map {value}: {problem}")]
    Map {
        /// Value of the option.
        value: String,
        /// The reason.
        problem: String,
    },
    /// An invalid value of an option, from any source.
    #[error("{option} is {value:?}, but must be {expected}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        expected: &'static str,
    },
    /// No advice is possible from these figures.
    #[error("{0}")]
    Advice(cairn_agent::model::advise::Refused),
    /// The job has no measured checkpoint.
    #[error(
        "job {job} has announced no complete checkpoint (cairn_checkpoint_begin and _end); say what one costs, as \
         in --checkpoint-cost 12s"
    )]
    NotMeasured {
        /// The job.
        job: String,
    },
    /// Standard output is not a terminal.
    #[error("cairn top draws on a terminal; for programs there is: cairn status --json")]
    NoTerminal,
    /// The job has no timeline.
    #[error("nothing is recorded of job {job}: there is no {}; give --persist where it was drained to", path.display())]
    NoTimeline {
        /// The job.
        job: String,
        /// Places that were searched.
        path: PathBuf,
    },
    /// The timeline of the job is empty.
    #[error("job {job} has read and written nothing yet")]
    NothingRecorded {
        /// The job.
        job: String,
    },
    /// Not a path in a store.
    #[error("{text:?} is not a path in a store; write JOB:/path")]
    Path {
        /// Value that the user gave.
        text: String,
    },
    /// Neither or both sides of a copy are in a store.
    #[error(
        "exactly one of source and target must lie in a store, written JOB:/path; use cp(1) for \
         the rest"
    )]
    CopySides,
    /// A directory where a file is expected.
    #[error("{path} is a directory; add --recursive")]
    IsDirectory {
        /// The directory.
        path: String,
    },
    /// A target that cannot be written.
    #[error("cannot write {path}: {problem}")]
    Target {
        /// The target.
        path: String,
        /// The problem.
        problem: &'static str,
    },
    /// An error about the value of an option, where the error itself does not name the option.
    #[error("{source}")]
    Setting {
        /// The option.
        option: &'static str,
        /// The error.
        source: Box<Error>,
    },
    /// An invalid option.
    #[error("{option}: {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// The problem.
        problem: String,
    },
    /// An invalid pattern.
    #[error("{pattern:?} is not a pattern: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        problem: String,
    },
    /// No file matches.
    #[error("no clean file matches {pattern:?} in job {job}; see: cairn ls {job}:/")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The job.
        job: String,
    },
    /// Removal of a store with files that exist nowhere else.
    #[error(
        "the store of job {job} has files that are nowhere else ({files}); drain them with: \
         cairn drain {job} --persist DIR, or give them up with: cairn rm {job} --discard"
    )]
    WouldLose {
        /// The job.
        job: String,
        /// Number of files.
        files: usize,
    },
    /// Removal of a store with files that exist nowhere else and are never drained.
    #[error(
        "the store of job {job} has files that are nowhere else ({files}), {unclean} of them unclean: whoever wrote \
         these died, or could not write all, and they are never drained; list them with: cairn ls --recursive {job}:/, save them with: cairn cp, \
         or give them up with: cairn rm {job} --discard"
    )]
    WouldLoseUnclean {
        /// The job.
        job: String,
        /// Number of files.
        files: usize,
        /// Number of unclean files among them.
        unclean: u64,
    },
    /// Removal of a store with checkpoints that are not archived.
    #[error(
        "the store of job {job} has checkpoints that are not in {url}: {reason}; send them with: cairn drain {job}, or give \
         them up with: cairn rm {job} --discard"
    )]
    NotArchived {
        /// The job.
        job: String,
        /// Its archive.
        url: String,
        /// Why they are not archived.
        reason: String,
    },
    /// A store that `cairn gc` was to remove stays.
    #[error("the store of job {job} is kept: {why}")]
    NotFreed {
        /// The job.
        job: String,
        /// The reason.
        why: String,
    },
    /// A run that did not recover in a drill.
    #[error(
        "the run did not come back: it ended with exit code {code}; its store is kept: cairn ls --checkpoints {job}"
    )]
    Drill {
        /// Job of the drill.
        job: String,
        /// Exit code of the run.
        code: i32,
    },
    /// A run that ended before all kills of a drill.
    #[error(
        "the run ended before it was killed as often as was asked for ({kills} of {wanted} times); give shorter times \
         with --after, or fewer --kills"
    )]
    TooFewKills {
        /// Number of kills.
        kills: u32,
        /// Requested number of kills.
        wanted: u32,
    },
    /// A drill whose program had no files in the store at any kill.
    #[error(
        "no file was in the store at any kill ({kills}), so that nothing was tested; have the program write its checkpoints below the prefix, \
         /cairn unless that was set, or kill it later, with --after"
    )]
    NothingAtStake {
        /// Number of kills.
        kills: u32,
    },
    /// A signal ended the drill.
    #[error("the drill was ended by signal {signal}; so was its run, and its store is removed")]
    DrillEnded {
        /// The signal.
        signal: i32,
    },
    /// Processes left their process group and survived a kill.
    #[error(
        "{processes} processes of the run have left its process group and live on; a drill kills the group only: start          them in it, or end them by hand"
    )]
    Undead {
        /// Number of processes.
        processes: usize,
    },
    /// A new store is to be filled, but has no source.
    #[error("--stage fills the store from the persist directory; name that with --persist")]
    NothingToStage,
    /// The persist directory has files that this run would replace.
    #[error("{}", owned(path, owner, *is_own))]
    Owned {
        /// The directory.
        path: PathBuf,
        /// Job that drained them.
        owner: String,
        /// Whether that is the job itself, started again.
        is_own: bool,
    },
    /// `--stage` with scope `rank`: only the ranks know whose files these are.
    #[error(
        "--stage fills a tree that all processes share; with --scope rank each rank makes its own"
    )]
    StageOfRanks,
    /// The job has no persist directory.
    #[error("job {job} has no persist directory; name one: cairn drain {job} --persist DIR")]
    NoPersist {
        /// The job.
        job: String,
    },
    /// A drain that is not complete.
    #[error("{summary}")]
    NotDrained {
        /// What is left, and why.
        summary: String,
    },
    /// A directory without a manifest.
    #[error(
        "{} has no {name}; only a directory that cairn drained to can be verified or restored",
        path.display(),
    )]
    NoManifest {
        /// The directory.
        path: PathBuf,
        /// Name of the missing file.
        name: String,
    },
    /// An archive without checkpoints.
    #[error(
        "{url} has no checkpoint; what cairn run --archive URL archives there, cairn restore URL finds"
    )]
    NothingArchived {
        /// `s3://BUCKET/PREFIX`, with the job if known.
        url: String,
    },
    /// A directory with manifests of other jobs only.
    #[error("{} has no manifest of job {job}, only of {jobs}; name one of these", path.display())]
    OtherManifests {
        /// The directory.
        path: PathBuf,
        /// Requested job.
        job: String,
        /// Jobs that drained there.
        jobs: String,
    },
    /// Manifests of several jobs match.
    #[error("there are manifests of several jobs ({jobs}); name one with --job")]
    WhichManifest {
        /// The jobs.
        jobs: String,
    },
    /// Damaged files.
    #[error("{damaged} of {checked} files are damaged or missing; {advice}")]
    Damage {
        /// Number of damaged files.
        damaged: u64,
        /// Number of checked files.
        checked: u64,
        /// Advice.
        advice: &'static str,
    },
    /// A durable tier with damaged metadata.
    #[error("the tier {0} cannot be read: {source}; see: cairn fsck {0}", RemotePath::shown(path))]
    TierDamaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: cairn_core::Error,
    },
    /// A durable tier that cannot be repaired.
    #[error("{} is damaged beyond repair, nothing was changed; {advice}", RemotePath::shown(path))]
    BeyondRepair {
        /// The file.
        path: PathBuf,
        /// Advice.
        advice: &'static str,
    },
    /// A repair of a durable tier that failed.
    #[error("{source}")]
    NotRepaired {
        /// The reason.
        source: Box<Error>,
    },
    /// Calls of the job were not counted.
    #[error("calls of job {job} were not counted; run it with --report-calls")]
    NotCounted {
        /// The job.
        job: String,
    },
    /// An unknown kind of export.
    #[error("{text:?} cannot be exported; write ram:SIZE, file:PATH or block:DEVICE")]
    ExportKind {
        /// Value that the user gave.
        text: String,
    },
    /// An export that cannot be opened.
    #[error("cannot export {export}: {}; a file must be there, with its size", why(source))]
    Export {
        /// Value that the user gave.
        export: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A file of secrets that cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Secrets {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: cairn_nvme::Error,
    },
    /// An invalid name of a subsystem.
    #[error("{text:?} is not the name of a subsystem; write one like nqn.2026-11.io.cairn:target")]
    Nqn {
        /// Value that the user gave.
        text: String,
    },
    /// Invalid space for grants.
    #[error("{text:?} is no room for grants; write ram:SIZE or dir:DIRECTORY:SIZE")]
    Room {
        /// Value that the user gave.
        text: String,
    },
    /// A target that does not answer on its control socket.
    #[error("cannot reach the target at {}: {}; is it running with --control?", path.display(), why(source))]
    Control {
        /// Its control socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A target that refuses a request.
    #[error("the target refuses: {reason}")]
    TargetRefused {
        /// The reason.
        reason: String,
    },
    /// A subsystem name that is taken, or reserved for subsystems without namespaces.
    #[error("there is another subsystem {text:?}; choose another name with --nqn")]
    NqnTaken {
        /// Value that the user gave.
        text: String,
    },
    /// An address that cannot be listened on.
    #[error("cannot listen at {address}: {}; choose another with {option}", why(source))]
    Listen {
        /// Option that names it.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// An unknown host.
    #[error("there is no host {text}: {}; write HOST or HOST:PORT", why(source))]
    Address {
        /// Value that the user gave.
        text: String,
        /// Error of the system.
        source: io::Error,
    },
    /// An error of a controller on another machine.
    #[error(
        "NVMe over TCP to {address}: {}; is there a target, and may this host use it?",
        why_remote(source)
    )]
    Remote {
        /// Its address.
        address: SocketAddr,
        /// The cause.
        source: nvme::Error,
    },
    /// The interposer library is missing.
    #[error(
        "cannot find libcairn_preload.so (looked for {looked_for}); install it there or set \
         CAIRN_PRELOAD"
    )]
    NoPreload {
        /// Places that were searched.
        looked_for: String,
    },
    /// Checkpoints could not be compared with their checksums, or damaged ones not repaired.
    #[error(
        "the newest checkpoints of job {job} could not all be compared with their checksums, or put right: {reason}; nothing was \
         started: run it again when that is mended, or go on with what there is: --resume as-is"
    )]
    NotCompared {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// Damaged metadata: the files of the store are unknown.
    #[error(
        "job {job}: {found}; nothing was changed, and the store is kept{ways}; to give the store up: cairn rm {job} --discard"
    )]
    Damaged {
        /// The job.
        job: String,
        /// Description of the damage.
        found: String,
        /// Where intact files may be, as text.
        ways: String,
    },
    /// `--resume image` for a job without an image.
    #[error(
        "there is no whole image of job {job} in {persist} to go on from; nothing was changed: to go on with the store, leave out \
         --resume image"
    )]
    NoImage {
        /// The job.
        job: String,
        /// Directory of the images.
        persist: String,
    },
    /// The store could not be copied out before a resume from the image.
    #[error(
        "what job {job} has in its store cannot be set aside for its last image: {reason}; nothing was started, and the store keeps \
         its files: mend that and run it again, or go on with the store: --resume as-is"
    )]
    NotLeft {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// A repair that a killed run began cannot be finished.
    #[error(
        "a run of job {job} was killed while it put checkpoints right or set them aside, and that cannot be ended: {reason}; \
         nothing was started: run it again when that is mended"
    )]
    NotSettled {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// Programs would not be served.
    #[error(
        "files below the prefix cannot be served: {}: {reason}; install that again with the command, or start the \
         program all the same with CAIRN_RUN_PROBE=never", library.display()
    )]
    Unserved {
        /// Library that programs load.
        library: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A file that programs are linked with is missing.
    #[error("cannot find {file} (looked for {looked_for}); it comes with: make install")]
    NotInstalled {
        /// The file.
        file: &'static str,
        /// Places that were searched.
        looked_for: String,
    },
    /// The path of the interposer library cannot be used in LD_PRELOAD.
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
        /// Error of the system.
        source: io::Error,
    },
    /// A failed system call.
    #[error("cannot {action} {}: {}", path.display(), why(source))]
    File {
        /// What was attempted; a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// An error of the layers below.
    #[error("{0}")]
    Agent(#[from] cairn_agent::Error),
}

/// Returns the message about a persist directory with existing files.
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

/// Returns the text of an NVMe error; for a system call, without its number.
fn why_remote(source: &nvme::Error) -> String {
    match source {
        nvme::Error::System { action, errno } => {
            format!("cannot {action}: {}", why(&io::Error::from_raw_os_error(errno.0)))
        }
        other => other.to_string(),
    }
}

impl Error {
    /// Marks an error as being about the value of `option`, for `map_err`.
    pub fn of(option: &'static str) -> impl FnOnce(Error) -> Error {
        move |source| match source {
            // The error names an option already, and a more specific one.
            Error::Setting { .. } => source,
            _ => Error::Setting { option, source: Box::new(source) },
        }
    }

    /// Returns the option that the error is about, or a key of the settings file that has no
    /// option.
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

    /// Returns the process that keeps a store from being used, if that is the error.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Error::Agent(cairn_agent::Error::Held { holder, .. })
            | Error::Store { source: cairn_agent::Error::Held { holder, .. }, .. } => Some(holder),
            _ => None,
        }
    }

    /// Returns the process's exit code for this error.
    pub fn exit_code(&self) -> i32 {
        // Lists every variant, so that the author of a new one decides whether anything was changed
        // by then.
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

    /// Whether a file or directory was missing, such as that of a store that was just removed.
    pub fn is_about_nothing_there(&self) -> bool {
        match self {
            Error::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Error::Store { source, .. } | Error::Agent(source) => is_about_nothing(source),
            Error::NotAStore { .. } => true,
            Error::Setting { source, .. } => source.is_about_nothing_there(),
            _ => false,
        }
    }

    /// Returns a converter from a system error of `action` on `path`, for `map_err`.
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
