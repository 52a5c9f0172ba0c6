//! `cairn fsck`: shows what a durable tier's file or device holds, what is damaged and what is lost
//! by that; and repairs it.
//!
//! Must stay true: only what exists twice is repaired, and nothing at all if something is lost, so
//! that an expert finds everything as it was. The tier is opened for writing only for a repair. The
//! result of a repair is checked again.
//!
//! Does not read the data of files; `cairn verify` does.

use cairn_agent::model::clock::utc_time;
use cairn_core::{
    Attributes, Condition, Durability, Inspection, LogEnd, Media, Recovered, Superblock, inspect,
    recover, repair_superblock,
};
use cairn_device::media::label::{Identity, Label};
use cairn_device::media::media_file::Access;
use cairn_device::{MediaFile, Workspace};
use cairn_job::file::path::FilePath;
use cairn_nvme::shared::RemotePath;
use cairn_platform::checksum::crc32c;
use clap::Args;
use serde::Serialize;
use std::path::Path;

use crate::Context;
use crate::create::claimed_tiers::ClaimedTiers;
use crate::error::{EXIT_NOT_REPAIRED, Error, FsckError, Result, TierError};
use crate::output::{self, count};
use crate::size::human;
use crate::store::offline::{self, TierFile};

const EXAMPLES: &str = "\
Examples:
  cairn fsck /nvme/cairn                  report what is there, repair what can be repaired
  cairn fsck --dry-run file:/nvme/cairn   only report
  cairn fsck /nvme/cairn --json           report and repair, with output for a program
  cairn fsck block:/dev/nvme0n1           a tier on a device

The file is that of a durable tier, made by: cairn run --tier file:/nvme/cairn:100G
fsck does not read the data of files; cairn verify file:/nvme/cairn compares every block with its
checksum.

Exit codes, as for fsck(8): 0 clean; 1 repaired; 4 damage is left: it cannot be repaired, or
--dry-run or a read-only device prevents the repair; 2 refused: not a tier, in use, or of another
size or version.";

/// Advice for damage that loses something. The remaining files cannot be trusted: their blocks may
/// have been reused for others since.
const ADVICE: &str = "restart from what was drained, with another tier";
/// Exit code: everything that was damaged was repaired.
const EXIT_REPAIRED: i32 = 1;

/// Check the file or device of a durable tier that no store uses, and repair it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The file or device, as PATH, file:PATH, dax:PATH or block:PATH
    #[arg(value_name = "FILE")]
    file: String,
    /// Write nothing
    #[arg(long)]
    dry_run: bool,
}

/// State of the whole tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Clean,
    Repairable,
    Repaired,
    Damaged,
}

/// Result of the command.
#[derive(Debug, Serialize)]
pub struct FsckReport {
    /// Path of the tier.
    file: String,
    /// `clean`, `repairable`, `repaired`, or `damaged` if it cannot be repaired.
    state: State,
    /// Description of the tier; null if both its superblock and the copy are damaged.
    tier: Option<Tier>,
    /// Recovered content; null if recovery fails.
    content: Option<Content>,
    /// Damaged parts.
    findings: Vec<Finding>,
}

/// Content of the superblock, the snapshots and the log.
#[derive(Debug, Serialize)]
struct Tier {
    /// Version of the format.
    format: u32,
    /// Identity of the tier in hexadecimal; no two tiers share one.
    identity: String,
    /// Creation time (RFC 3339).
    created: String,
    /// Size of metadata and data.
    bytes: u64,
    /// Whether it holds data and not only metadata.
    holds_data: bool,
    /// Further tiers of the store.
    further: Vec<Further>,
    /// Allocation unit.
    hugeblock_bytes: u32,
    /// Mount prefix of its files.
    mount: String,
    /// What survives the loss of memory: synced files (`fsync`), or each operation (`op`).
    durability: &'static str,
    /// `intact` or `damaged`: the label at the end of the tier, which names its owner.
    label: &'static str,
    /// `intact` or `damaged`.
    superblock: &'static str,
    /// `intact` or `damaged`.
    superblock_copy: &'static str,
    /// The two snapshot slots.
    snapshots: Vec<Snapshot>,
    /// Size of the log that recovery reads, and capacity of the log.
    log_used_bytes: u64,
    log_bytes: u64,
    /// Position where the last flush of the log was cut off, which a crash may cause; null if it
    /// was not.
    log_torn_at: Option<u64>,
}

/// A further tier whose metadata are here.
#[derive(Debug, Serialize)]
struct Further {
    bytes: u64,
    /// Identity of its file; null in memory.
    identity: Option<String>,
}

/// A snapshot slot.
#[derive(Debug, Serialize)]
struct Snapshot {
    /// Offset in the tier.
    offset: u64,
    /// `intact`, `blank`, `damaged`, or `records damaged`.
    condition: &'static str,
    /// Ascending number; the snapshot with the greater one is in effect.
    number: Option<u64>,
    /// Size of its records.
    bytes: Option<u64>,
    /// Position of the log at which it was taken, in words.
    log_position: Option<u64>,
}

/// The namespace.
#[derive(Debug, Serialize)]
struct Content {
    /// Number of replayed records, including those of the snapshot.
    records: u64,
    /// LSN of the last operation.
    lsn: u64,
    files: u64,
    directories: u64,
    /// Symbolic links.
    links: u64,
    /// Blocks in use, each by one owner.
    used_blocks: u64,
    /// Total number of blocks.
    blocks: u64,
    /// Files that were open when the node's memory was lost, or whose writers died, but that are
    /// not lost.
    unclean: Vec<String>,
    /// Files that lost a part that was in memory only.
    lost: Vec<String>,
}

/// A damaged part.
#[derive(Debug, Serialize)]
struct Finding {
    /// Name of the part.
    part: &'static str,
    /// Its offset in the tier.
    offset: Option<u64>,
    /// Description of the damage.
    problem: String,
    /// What is lost by it.
    lost: String,
    /// How it is repaired; null if it cannot be.
    remedy: Option<&'static str>,
    /// Whether it was repaired.
    repaired: bool,
}

/// Runs the command. Returns the exit code.
pub fn run(context: &Context, arguments: &Arguments) -> Result<i32> {
    let path = offline::path_of(&arguments.file);
    let mut report = examine(&path, &offline::open(&path, Access::Read)?)?;
    let mut repaired = Ok(());
    if report.state == State::Repairable && !arguments.dry_run {
        repaired = repair(&path).map(|after| report = after);
    }
    match context.json {
        true => output::json(&report)?,
        false => print(&report),
    }
    repaired.map_err(|error| Error::Fsck(FsckError::NotRepaired { source: Box::new(error) }))?;
    match report.state {
        State::Clean => Ok(0),
        State::Repaired => Ok(EXIT_REPAIRED),
        State::Repairable => Ok(EXIT_NOT_REPAIRED),
        State::Damaged => Err(Error::Fsck(FsckError::BeyondRepair { path, advice: ADVICE })),
    }
}

/// Examines the tier without changing it.
fn examine(path: &Path, tier: &TierFile) -> Result<FsckReport> {
    let file = &tier.file;
    let mut report = FsckReport {
        file: RemotePath::shown(path),
        state: State::Clean,
        tier: None,
        content: None,
        findings: Vec::new(),
    };
    match inspect(file, crc32c) {
        Ok(Some(inspection)) => {
            let content = read_content(file, &inspection.superblock);
            report.tier = Some(describe(&inspection, tier.label_is_damaged));
            add_findings(&inspection, &content, &mut report.findings);
            report.content = content.ok();
        }
        Ok(None) => {
            let problem = "has no superblock: its metadata are elsewhere, or it was overwritten";
            return Err(Error::Tier(TierError::TierFile {
                path: path.to_path_buf(),
                problem: problem.to_string(),
                advice: "name the file with the metadata of its store".into(),
            }));
        }
        Err(error @ cairn_core::Error::UnsupportedVersion { .. }) => {
            return Err(offline::unusable(path)(error));
        }
        Err(error) if Superblock::read(file, crc32c).is_ok() => {
            let problem = format!("it cannot be read: {error}");
            report.findings.push(Finding::lost("log", None, problem, "everything"));
        }
        Err(error) => {
            let problem = format!("neither it nor its copy can be used: {error}");
            report.findings.push(Finding::lost("superblock", Some(0), problem, "everything"));
        }
    }
    if tier.label_is_damaged {
        let remedy = ("the superblock says the same", "written again from the superblock");
        let problem = "it is not what was written";
        report.findings.push(Finding::harmless("label", Media::bytes(file), problem, remedy));
    }
    report.state = match &report.findings[..] {
        [] => State::Clean,
        all if all.iter().all(|finding| finding.remedy.is_some()) => State::Repairable,
        _ => State::Damaged,
    };
    Ok(report)
}

/// Carries out all remedies and checks the result. Errors: the tier cannot be written to.
fn repair(path: &Path) -> Result<FsckReport> {
    // Given back after everything is closed.
    let _claimed = ClaimedTiers::for_now(path)?;
    let mut tier = offline::open(path, Access::ReadWrite)?;
    // A store may have used the tier meanwhile.
    let before = examine(path, &tier)?;
    if before.state != State::Repairable {
        return Ok(before);
    }
    carry_out(&before.findings, &mut tier).map_err(offline::unusable(path))?;
    drop(tier);
    let mut after = examine(path, &offline::open(path, Access::Read)?)?;
    if after.state == State::Clean {
        after.state = State::Repaired;
        after.findings = before.findings;
        after.findings.iter_mut().for_each(|finding| finding.repaired = true);
    }
    Ok(after)
}

fn carry_out(findings: &[Finding], tier: &mut TierFile) -> cairn_core::Result<()> {
    let file = &mut tier.file;
    let superblock = Superblock::read(file, crc32c)?;
    for part in findings.iter().map(|finding| finding.part) {
        match part {
            "label" => {
                let (bytes, identity) = (superblock.bytes, identity(&superblock));
                file.write_label(Label { bytes, identity, ..Label::default() })?;
            }
            "snapshot" => {
                // Recovery ends with a new snapshot, in the slot other than the one it started
                // from.
                let words = superblock.geometry.segment_bytes() as usize / 8;
                recover(file, &Workspace::new(words)?, crc32c)?;
            }
            _ => repair_superblock(file, crc32c)?,
        }
    }
    file.flush()
}

/// Returns the identity of a tier in the form of the label.
fn identity(superblock: &Superblock) -> Identity {
    let mut identity = Identity::default();
    for (bytes, half) in identity.chunks_exact_mut(8).zip(superblock.identity) {
        bytes.copy_from_slice(&half.to_le_bytes());
    }
    identity
}

fn describe(inspection: &Inspection, label_is_damaged: bool) -> Tier {
    let superblock = &inspection.superblock;
    let [(_, of_superblock), (_, of_copy)] = inspection.superblocks;
    let snapshots = inspection.slots.iter().map(|slot| Snapshot {
        offset: slot.offset,
        condition: condition(slot.condition),
        number: slot.snapshot.map(|snapshot| snapshot.number),
        bytes: slot.snapshot.map(|snapshot| snapshot.bytes),
        log_position: slot.snapshot.map(|snapshot| snapshot.position),
    });
    let log = inspection.log;
    Tier {
        format: superblock.version,
        identity: hexadecimal(superblock.identity),
        holds_data: superblock.geometry.tier_blocks[0] > 0,
        further: further(superblock),
        created: utc_time(superblock.created),
        bytes: superblock.bytes,
        hugeblock_bytes: superblock.geometry.hugeblock_bytes,
        mount: String::from_utf8_lossy(&superblock.geometry.mount).into_owned(),
        durability: match superblock.geometry.durability {
            Some(Durability::Operation) => "op",
            _ => "fsync",
        },
        label: condition(if label_is_damaged { Condition::Damaged } else { Condition::Intact }),
        superblock: condition(of_superblock),
        superblock_copy: condition(of_copy),
        snapshots: snapshots.collect(),
        log_used_bytes: log.map_or(0, |log| log.used_bytes),
        log_bytes: log.map_or(0, |log| log.total_bytes),
        log_torn_at: log.and_then(|log| match log.end {
            LogEnd::Torn { offset } => Some(offset),
            _ => None,
        }),
    }
}

/// Returns the further tiers.
fn further(superblock: &Superblock) -> Vec<Further> {
    let blocks = superblock.geometry.tier_blocks[1..].iter().zip(superblock.further);
    let blocks = blocks.filter(|(blocks, _)| **blocks > 0);
    let tiers = blocks.map(|(&blocks, identity)| Further {
        bytes: u64::from(blocks) * u64::from(superblock.geometry.hugeblock_bytes),
        identity: identity.map(hexadecimal),
    });
    tiers.collect()
}

/// Returns an identity in hexadecimal.
fn hexadecimal(words: [u64; 2]) -> String {
    words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
}

fn condition(condition: Condition) -> &'static str {
    match condition {
        Condition::Intact => "intact",
        Condition::Blank => "blank",
        Condition::Damaged => "damaged",
        Condition::RecordsDamaged => "records damaged",
    }
}

/// Recovers the namespace in memory and checks all its invariants.
fn read_content(file: &MediaFile, superblock: &Superblock) -> cairn_core::Result<Content> {
    let (fs, Recovered { records, lsn, .. }) = offline::rebuild(file, superblock)?;
    let blocks = fs.check()?;
    let tree = offline::tree(&fs)?;
    let counted = |is: fn(&Attributes) -> bool| -> u64 {
        tree.iter().filter(|(_, attributes)| is(attributes)).count() as u64
    };
    let shown = |path: &FilePath| offline::shown(superblock, path);
    let those = |are: fn(&Attributes) -> bool| {
        tree.iter().filter(move |(_, attributes)| are(attributes)).map(|(path, _)| shown(path))
    };
    Ok(Content {
        records,
        lsn,
        files: counted(Attributes::is_regular),
        directories: counted(Attributes::is_directory),
        links: counted(Attributes::is_symlink),
        used_blocks: blocks.capacity_blocks - blocks.free_blocks,
        blocks: blocks.capacity_blocks,
        unclean: those(|attributes| attributes.unclean && !attributes.lost).collect(),
        lost: those(|attributes| attributes.lost).collect(),
    })
}

impl Finding {
    /// Creates a finding about damage that cannot be repaired.
    fn lost(
        part: &'static str,
        offset: Option<u64>,
        problem: String,
        lost: impl Into<String>,
    ) -> Finding {
        Finding { part, offset, problem, lost: lost.into(), remedy: None, repaired: false }
    }

    /// Creates a finding about damage to something that exists twice.
    fn harmless(
        part: &'static str,
        offset: u64,
        problem: &str,
        (why, remedy): (&str, &'static str),
    ) -> Finding {
        let (problem, lost) = (problem.to_string(), format!("nothing: {why}"));
        Finding { part, offset: Some(offset), problem, lost, remedy: Some(remedy), repaired: false }
    }
}

fn add_findings(
    inspection: &Inspection,
    content: &cairn_core::Result<Content>,
    findings: &mut Vec<Finding>,
) {
    let copies = [("superblock", "its copy is intact"), ("superblock's copy", "it is a copy")];
    for ((part, why), (offset, condition)) in copies.into_iter().zip(inspection.superblocks) {
        if condition != Condition::Intact {
            let remedy = "written again from the other one";
            findings.push(Finding::harmless(part, offset, "its checksum is wrong", (why, remedy)));
        }
    }
    add_snapshot_findings(inspection, content.is_ok(), findings);
    let log_end = inspection.log.map(|log| log.end);
    if let (Ok(content), Some(LogEnd::Broken { offset, lost_blocks })) = (content, log_end) {
        if !inspection.lost_snapshot {
            let blocks = count(lost_blocks, "block");
            let problem = format!("it breaks off before {blocks} that were flushed after it");
            let lost = format!("every operation after number {}", content.lsn);
            findings.push(Finding::lost("log", Some(offset), problem, lost));
        }
    }
    if let Err(error) = content {
        let problem = format!("it cannot be made again: {error}");
        findings.push(Finding::lost("namespace", None, problem, "everything"));
    }
}

fn add_snapshot_findings(inspection: &Inspection, is_readable: bool, findings: &mut Vec<Finding>) {
    let newest = inspection.slots.iter().filter_map(|slot| slot.snapshot).map(|one| one.number);
    let newest = newest.max();
    for slot in &inspection.slots {
        let is_newest = slot.snapshot.map(|snapshot| snapshot.number) == newest;
        let (problem, why) = match slot.condition {
            Condition::Intact | Condition::Blank => continue,
            Condition::Damaged => {
                ("its first block is damaged", "the other one and the log lead to the same state")
            }
            Condition::RecordsDamaged if is_newest => {
                ("its records are damaged", "the older one and the log lead to the same state")
            }
            Condition::RecordsDamaged => (
                "its records are damaged, or a crash interrupted the one that was to replace it",
                "the newer one counts",
            ),
        };
        let is_lost = match slot.condition {
            Condition::Damaged => inspection.lost_snapshot || !is_readable,
            _ => is_newest && !is_readable,
        };
        if is_lost {
            let lost = match newest.filter(|_| is_readable) {
                Some(number) => format!("what happened since snapshot {number}"),
                None => "everything".to_string(),
            };
            findings.push(Finding::lost("snapshot", Some(slot.offset), problem.to_string(), lost));
            continue;
        }
        let why = (why, "replaced by a new snapshot");
        findings.push(Finding::harmless("snapshot", slot.offset, problem, why));
    }
}

fn print(report: &FsckReport) {
    match &report.tier {
        Some(tier) => print_tier(&report.file, tier),
        None => output::line(&report.file),
    }
    if let Some(content) = &report.content {
        print_content(content);
    }
    for finding in &report.findings {
        let place = finding.offset.map_or(String::new(), |offset| format!(" at offset {offset}"));
        output::line(&format!("damaged: {}{place}: {}", finding.part, finding.problem));
        output::line(&format!("  lost by it: {}", finding.lost));
        match (finding.remedy, finding.repaired) {
            (Some(remedy), true) => output::line(&format!("  repaired: {remedy}")),
            (Some(remedy), false) => output::line(&format!("  can be repaired: {remedy}")),
            (None, _) => output::line("  cannot be repaired"),
        }
    }
    output::line(match report.state {
        State::Clean => "clean",
        State::Repairable => "nothing is lost; repaired by cairn fsck without --dry-run",
        State::Repaired => "nothing is lost; clean now",
        State::Damaged => "damaged",
    });
}

fn print_tier(file: &str, tier: &Tier) {
    let size = human(tier.bytes);
    let what = if tier.holds_data { "durable tier" } else { "metadata" };
    output::line(&format!("{file}: {what} of {size}, format {}", tier.format));
    output::line(&format!("  identity    {}, made {}", tier.identity, tier.created));
    let unit = human(u64::from(tier.hugeblock_bytes));
    let mount = &tier.mount;
    output::line(&format!(
        "  mount       {mount}, durability {}, blocks of {unit}",
        tier.durability
    ));
    for Further { bytes, identity } in &tier.further {
        let place = identity.as_ref().map_or("memory".to_string(), |one| format!("file {one}"));
        output::line(&format!("  tier        {} in {place}", human(*bytes)));
    }
    output::line(&format!("  label       {}", tier.label));
    let (superblock, copy) = (tier.superblock, tier.superblock_copy);
    output::line(&format!("  superblock  {superblock}; its copy: {copy}"));
    for snapshot in &tier.snapshots {
        let said = match (snapshot.number, snapshot.bytes, snapshot.log_position) {
            (Some(number), Some(bytes), Some(position)) => {
                format!("number {number}, {} of records, log word {position}, ", human(bytes))
            }
            _ => String::new(),
        };
        let (offset, condition) = (snapshot.offset, snapshot.condition);
        output::line(&format!("  snapshot    {said}at offset {offset}: {condition}"));
    }
    let (used, room) = (human(tier.log_used_bytes), human(tier.log_bytes));
    let end = match tier.log_torn_at {
        Some(offset) => format!("; its last flush broke off at offset {offset}, as in a crash"),
        None => String::new(),
    };
    output::line(&format!("  log         {used} of {room} used{end}"));
}

fn print_content(content: &Content) {
    let (files, links) = (count(content.files, "file"), count(content.links, "symbolic link"));
    let directories = match content.directories {
        1 => "1 directory".to_string(),
        several => format!("{several} directories"),
    };
    output::line(&format!("  content     {files}, {directories}, {links}"));
    let (owned, all) = (content.used_blocks, count(content.blocks, "block"));
    output::line(&format!("  accounts    {owned} of {all} in use, each by one owner"));
    let records = count(content.records, "record");
    output::line(&format!("  recovery    {records} replayed, up to operation {}", content.lsn));
    for path in &content.unclean {
        output::line(&format!(
            "  unclean     {path}: not closed, or its writer died or a write failed"
        ));
    }
    for path in &content.lost {
        output::line(&format!("  lost        {path}: a part of it was in memory only"));
    }
}
