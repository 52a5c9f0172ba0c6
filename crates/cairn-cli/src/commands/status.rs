//! `cairn status`: shows stores, how full they are, and what is safe.

use cairn_agent::agent::client::Client;
use cairn_agent::checkpoint::quarantine::Repair;
use cairn_agent::model::job::{DeviceKind, Scope, TierSpec};
use cairn_agent::model::protocol::{Bringing, Phase, Silent, SpaceStatus, Stalled, Status};
use cairn_agent::model::ranks::Launch;
use cairn_agent::store::inputs::Inputs;
use cairn_agent::store::register_file;
use cairn_agent::store::volume::Volume;
use cairn_core::{Durability, Timestamp};
use cairn_job::checkpoint::sets::lag::Behind;
use cairn_job::checkpoint::sets::register::{self, Level};
use cairn_job::file::mapping::{Mapping, Rule};
use cairn_job::file::node::Kind;
use cairn_nvme::shared::RemotePath;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use crate::Context;
use crate::drain::notes::{Checkpoint, Notes};
use crate::drain::{follow, lag, pace};
use crate::error::Result;
use crate::output::{self, count, local_time, ranks};
use crate::request::numa::NumaReport;
use crate::run::unserved;
use crate::settings::{archive, walltime};
use crate::size::human;
use crate::store::job_name::JobOrAll;
use crate::store::{OpenStore, Roots};

const EXAMPLES: &str = "\
Examples:
  cairn status               every store of this user on this node
  cairn status melt          the store of job melt
  cairn status --wait melt   wait for its drain and archive; exit code 75 if something is left
  cairn status --json | jq '.[].files.undrained_bytes'";

/// Show stores: how full they are, what is drained, what is in trouble.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobOrAll,
    /// Wait until everything that can be drained and archived is, and print what is left
    #[arg(long)]
    wait: bool,
}

/// A store.
#[derive(Debug, Serialize)]
pub struct StoreReport {
    /// The job.
    job: String,
    /// `running` while a `cairn run` holds it, else `kept`.
    state: &'static str,
    /// Its directory.
    store: PathBuf,
    /// Its mount prefix.
    mount: String,
    /// Its persist directory.
    persist: Option<PathBuf>,
    /// Directories with their own places in the persist directory.
    #[serde(skip_serializing_if = "Mapping::is_empty")]
    map: Mapping,
    /// Which processes share a tree.
    scope: Scope,
    /// Creation time in seconds since the epoch.
    created: u64,
    /// Command it was created for.
    command: Vec<String>,
    /// Tier of its metadata; null if the user did not choose one: then the first tier if that is
    /// durable, else memory.
    meta: Option<MetaReport>,
    /// Its data tiers, in order of preference.
    tiers: Vec<TierReport>,
    /// Bytes of its tiers in use, all namespaces together.
    used_bytes: u64,
    /// Allocation unit of a file with data, in bytes.
    block_bytes: u64,
    /// Number of attached processes, including Cairn's own.
    processes: u64,
    /// Launches of MPI programs in it, oldest first.
    launches: Vec<Launch>,
    /// The launch of the resource manager that the store was made in, as in `slurm:4711.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<String>,
    /// Programs that Cairn could not serve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unserved: Vec<String>,
    /// Programs that inherited files or a directory of the store and could not use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreached: Vec<String>,
    /// A library whose raw system calls could not be caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    uncaught: Option<String>,
    /// Its regular files.
    files: FileCounts,
    /// Checkpoints that programs announced, in that order.
    checkpoints: Vec<Checkpoint>,
    /// Complete checkpoints as the agent found them last, oldest first.
    sets: Vec<SetReport>,
    /// Families with checkpoints that were removed before the drain had copied them, since the
    /// newest drained one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    behind: Vec<Behind>,
    /// Status of its agent; null if none is needed or none could be started.
    agent: Option<Status>,
    /// Why the store cannot be used; the other fields may then be zero.
    trouble: Option<String>,
}

/// A complete checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetReport {
    /// Its number in the store.
    pub id: u64,
    /// Its name.
    pub name: String,
    pub files: u64,
    pub bytes: u64,
    /// Where it is, and where it is to be: `node` or `pfs`.
    pub level: Level,
    pub wanted: Level,
}

/// Tier of the metadata.
#[derive(Debug, Serialize)]
struct MetaReport {
    /// In memory without a given size it has 0 bytes.
    #[serde(flatten)]
    spec: TierSpec,
    /// Number of files and directories, all namespaces together, and its maximum.
    inodes: u64,
    inodes_max: u64,
    /// The log, unless the metadata are in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<LogReport>,
    /// Same as for a data tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_sync: Option<bool>,
    /// Write error since the store was created, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

/// A data tier.
#[derive(Debug, Serialize)]
struct TierReport {
    #[serde(flatten)]
    spec: TierSpec,
    /// Bytes in use, all namespaces together.
    used_bytes: u64,
    /// Bytes that cannot be used at present because memory is short.
    #[serde(skip_serializing_if = "is_zero")]
    barred_bytes: u64,
    /// Bytes that were moved from here to a faster tier after a read, counted each time.
    #[serde(skip_serializing_if = "is_zero")]
    promoted_bytes: u64,
    /// The log of a durable tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<LogReport>,
    /// For a mapped file: whether it is persistent memory, which the processor makes durable;
    /// otherwise the kernel does.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_sync: Option<bool>,
    /// Write error since the store was created, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// NUMA nodes of a tier in memory, on a machine with several.
    #[serde(skip_serializing_if = "Option::is_none")]
    numa: Option<NumaReport>,
}

/// The log of a durable tier, all namespaces together.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct LogReport {
    /// When operations are durable: `fsync` or `op`.
    durability: &'static str,
    used_bytes: u64,
    total_bytes: u64,
}

/// Regular files by state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FileCounts {
    pub total: u64,
    pub total_bytes: u64,
    /// Closed, and drained in their newest version.
    pub drained: u64,
    pub drained_bytes: u64,
    /// Inputs that nobody has changed since they were staged in.
    #[serde(default)]
    pub inputs: u64,
    #[serde(default)]
    pub inputs_bytes: u64,
    /// Closed, but not drained.
    pub undrained: u64,
    pub undrained_bytes: u64,
    /// Open: a program may write to them.
    pub open: u64,
    pub open_bytes: u64,
    /// The writer died or could not write everything, or a part is lost with a tier in memory.
    pub unclean: u64,
    pub unclean_bytes: u64,
    /// Drained files whose data are only in the place they were drained to: not brought in yet, or
    /// they gave up their room.
    #[serde(default)]
    pub absent: u64,
    #[serde(default)]
    pub absent_bytes: u64,
    /// Absent files that programs wait for.
    #[serde(default)]
    pub waited_for: u64,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let job = arguments.job.as_deref();
    let stores = match arguments.wait {
        true => vec![context.roots.choose(job)?],
        false => stores(&context.roots, job)?,
    };
    let followed = match stores.first().filter(|_| arguments.wait) {
        Some(store) => follow::to_the_end(store, context.json),
        None => Ok(()),
    };
    let reports: Vec<StoreReport> = stores.iter().map(report).collect();
    if context.json {
        output::json(&reports)?;
        return followed;
    }
    if reports.is_empty() {
        output::line("no stores");
        if let Some(root) = context.roots.explicit().filter(|root| !root.is_dir()) {
            output::say!(
                "cairn: {} is not a directory (--store-root, CAIRN_STORE_ROOT)",
                root.display()
            );
        }
    }
    for report in &reports {
        lines(report).iter().for_each(|line| output::line(line));
    }
    followed
}

/// Returns the state of one job's store, or of every store. Errors: the store does not exist or
/// cannot be used.
pub fn reports(roots: &Roots, job: Option<&str>) -> Result<Vec<StoreReport>> {
    Ok(stores(roots, job)?.iter().map(report).collect())
}

fn stores(roots: &Roots, job: Option<&str>) -> Result<Vec<OpenStore>> {
    match job {
        Some(_) => Ok(vec![roots.choose(job)?]),
        // A store that was removed meanwhile, or that this user may not use, is not shown.
        None => {
            let all = roots.all();
            Ok(all.iter().filter_map(|(_, directory)| OpenStore::open(directory).ok()).collect())
        }
    }
}

fn report(store: &OpenStore) -> StoreReport {
    let job = &store.job;
    let mut report = StoreReport {
        job: job.job.clone(),
        state: if store.is_running() { "running" } else { "kept" },
        store: store.directory().to_path_buf(),
        mount: job.mount.clone(),
        persist: job.persist.clone(),
        map: job.map.clone(),
        scope: job.scope,
        created: job.created,
        command: job.command.clone(),
        meta: job.meta.clone().map(|spec| MetaReport {
            spec,
            inodes: 0,
            inodes_max: 0,
            log: None,
            map_sync: None,
            trouble: None,
        }),
        tiers: job
            .tiers
            .iter()
            .cloned()
            .map(|spec| TierReport {
                spec,
                used_bytes: 0,
                barred_bytes: 0,
                promoted_bytes: 0,
                log: None,
                map_sync: None,
                trouble: None,
                numa: None,
            })
            .collect(),
        used_bytes: 0,
        block_bytes: 0,
        processes: 0,
        unserved: unserved::programs(store.directory()),
        unreached: unserved::unreached(store.directory()),
        uncaught: unserved::uncaught(store.directory()),
        launches: Vec::new(),
        launch: job.launch.clone(),
        files: FileCounts::default(),
        checkpoints: Notes::of(store).map(|notes| notes.checkpoints()).unwrap_or_default(),
        sets: sets(store),
        behind: lag::of(store.directory()),
        agent: None,
        trouble: None,
    };
    let counted = store.volumes().and_then(|volumes| {
        let inputs = Inputs::known(store.directory());
        let first_with_data = usize::from(job.metadata_tier().is_some());
        for volume in &volumes {
            count_volume(volume, first_with_data, &inputs, &mut report)?;
        }
        report.launches = cairn_agent::model::ranks::launches(store.directory())?;
        Ok(())
    });
    report.trouble = counted.err().map(|error| error.to_string());
    // With something to drain there must be an agent, so one is started. Otherwise only an existing
    // one is asked.
    let needed = job.persist.is_some() && report.files.undrained > 0;
    let agent = match needed {
        true => store.agent().or_else(|_| Client::connect(store.directory()).ok_or(())).ok(),
        false => Client::connect(store.directory()),
    };
    report.agent = agent.and_then(|mut agent| match agent.status() {
        Ok(status) => Some(status),
        Err(error) => {
            report.trouble.get_or_insert(error.to_string());
            None
        }
    });
    report
}

/// Returns the complete checkpoints, without those under repair. Empty if the register cannot be
/// read; the agent reports that.
fn sets(store: &OpenStore) -> Vec<SetReport> {
    let register = register_file::load(store.directory()).unwrap_or_default();
    let repair = Repair::load(store.directory()).ok().flatten().map(|repair| repair.places());
    let is_whole = |one: &&register::Checkpoint| {
        let mut paths = one.files.iter().map(|file| &file.path);
        !repair.as_ref().is_some_and(|repair| paths.any(|path| repair.have(path)))
    };
    let set = |one: &register::Checkpoint| SetReport {
        id: one.id,
        name: one.name.to_string(),
        files: one.files.len() as u64,
        bytes: one.bytes(),
        level: one.level,
        wanted: one.wanted,
    };
    register.checkpoints().iter().filter(is_whole).map(set).collect()
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl StoreReport {
    /// Whether half of the tiers or more is used by blocks that are nearly empty. Such blocks
    /// cannot be shared if the metadata are durable.
    fn is_full_of_small_files(&self) -> bool {
        let bytes: u64 = self.tiers.iter().map(|tier| tier.spec.bytes).sum();
        let has_log = |tier: &TierReport| tier.log.is_some();
        let is_durable = self.tiers.iter().any(has_log)
            || self.meta.as_ref().is_some_and(|meta| meta.log.is_some());
        is_durable
            && self.block_bytes > 4096
            && self.used_bytes >= bytes / 2
            && self.files.total_bytes < self.used_bytes / 4
    }
}

fn count_volume(
    volume: &Volume,
    first_with_data: usize,
    inputs: &Inputs,
    report: &mut StoreReport,
) -> Result<()> {
    let root = cairn_job::file::path::FilePath::root();
    let usage = volume.fs().usage().map_err(volume.error("measure", &root))?;
    if let Some(meta) = &mut report.meta {
        meta.inodes += usage.inodes;
        meta.inodes_max += usage.inode_capacity;
    }
    report.block_bytes = usage.hugeblock_bytes;
    let used = &usage.used_blocks[first_with_data..];
    for (tier, used_blocks) in report.tiers.iter_mut().zip(used) {
        tier.used_bytes += used_blocks * usage.hugeblock_bytes;
        report.used_bytes += used_blocks * usage.hugeblock_bytes;
    }
    // In scope `rank` the node's namespace has no space of its own and is not mapped.
    let map_sync = |number| volume.tier(number).ok().and_then(|device| device.is_synchronous());
    if let Some(meta) = report.meta.as_mut().filter(|_| first_with_data > 0) {
        meta.map_sync = meta.map_sync.max(map_sync(0));
    }
    for (number, tier) in (first_with_data as u8..).zip(&mut report.tiers) {
        let promoted_blocks = usage.promoted_blocks[usize::from(number)];
        tier.promoted_bytes += promoted_blocks * usage.hugeblock_bytes;
        tier.map_sync = tier.map_sync.max(map_sync(number));
        if volume.tier(number).is_ok_and(|device| device.has_lost_writes()) {
            tier.trouble = Some("a write to it was lost, and every later one fails".to_string());
        }
    }
    if let Some(tier) = report.tiers.iter_mut().find(|tier| tier.spec.path.is_none()) {
        let barred_blocks: u64 = usage.parts.iter().map(|part| u64::from(part.barred_blocks)).sum();
        tier.barred_bytes += barred_blocks * usage.hugeblock_bytes;
        if let Some(numa) = NumaReport::of(volume.fs().geometry().placement) {
            tier.numa.get_or_insert(numa).add(&usage.parts, usage.hugeblock_bytes);
        }
    }
    if let Some(log) = volume.fs().log_usage().map_err(volume.error("measure", &root))? {
        let durability = match volume.fs().geometry().durability {
            Some(Durability::Operation) => "op",
            _ => "fsync",
        };
        let (place, trouble) = match &mut report.meta {
            Some(meta) => (&mut meta.log, &mut meta.trouble),
            None => {
                let first = &mut report.tiers[0];
                (&mut first.log, &mut first.trouble)
            }
        };
        if log.failed {
            *trouble = Some(format!(
                "writing to it failed: nothing becomes durable any more; after the run has ended and the tier answers again, \
                 cairn run --job {} goes on with the durable data",
                report.job
            ));
        }
        let sum = place.get_or_insert_default();
        sum.durability = durability;
        sum.used_bytes += log.used_bytes;
        sum.total_bytes += log.total_bytes;
    }
    report.processes += usage.processes;
    let files = &mut report.files;
    let tree = volume.tree()?;
    for (path, node) in tree.iter().filter(|(_, node)| node.kind == Kind::File) {
        files.total += 1;
        files.total_bytes += node.bytes;
        let (number, bytes) = if node.open {
            (&mut files.open, &mut files.open_bytes)
        } else if node.unclean {
            (&mut files.unclean, &mut files.unclean_bytes)
        } else if inputs.is_unchanged(path, node) {
            (&mut files.inputs, &mut files.inputs_bytes)
        } else if node.drained {
            (&mut files.drained, &mut files.drained_bytes)
        } else {
            (&mut files.undrained, &mut files.undrained_bytes)
        };
        *number += 1;
        *bytes += node.bytes;
        if let Some(absence) = node.absence {
            files.absent += 1;
            files.absent_bytes += node.bytes;
            files.waited_for += u64::from(absence.wanted);
        }
    }
    Ok(())
}

fn brought_so_far(bringing: &Bringing) -> String {
    let Bringing { brought_files, brought_bytes, bytes_per_second, .. } = *bringing;
    let rate = match bytes_per_second {
        0 => String::new(),
        rate => format!(" at {}/s", human(rate)),
    };
    match brought_files {
        0 => String::new(),
        files => format!("; {}, {} were{rate}", count(files, "file"), human(brought_bytes)),
    }
}

fn lines(report: &StoreReport) -> Vec<String> {
    let made = local_time(Timestamp::from_parts(report.created as i64, 0));
    let mut lines = vec![format!("{}: {}, made {made}", report.job, report.state)];
    let mut add = |key: &str, value: String| lines.push(format!("  {key:<9} {value}"));
    if let Some(trouble) = &report.trouble {
        add("trouble", trouble.clone());
    }
    let command = report.command.join(" ");
    add("command", if command.is_empty() { "none yet".to_string() } else { command });
    add("store", format!("{} at {}", report.store.display(), report.mount));
    let log_line = |log: &LogReport| {
        let used = format!("{} of {} used", human(log.used_bytes), human(log.total_bytes));
        format!("{used}, durable at {}", log.durability)
    };
    let place_of = |path: &Path, map_sync: Option<bool>| {
        let how = match map_sync {
            None => "",
            Some(true) => ", mapped with MAP_SYNC",
            Some(false) => ", mapped without MAP_SYNC",
        };
        format!("{}{how}", RemotePath::shown(path))
    };
    if let Some(MetaReport { spec, inodes, inodes_max, log, map_sync, trouble }) = &report.meta {
        let place = match &spec.path {
            Some(path) => place_of(path, *map_sync),
            None => "memory".to_string(),
        };
        add("metadata", format!("{inodes} of {inodes_max} files and directories, {place}"));
        log.iter().for_each(|log| add("log", log_line(log)));
        trouble.iter().for_each(|trouble| add("trouble", trouble.to_string()));
    }
    for TierReport {
        spec,
        used_bytes,
        barred_bytes,
        promoted_bytes,
        log,
        map_sync,
        trouble,
        numa,
    } in &report.tiers
    {
        let used = format!("{} of {} used", human(*used_bytes), human(spec.bytes));
        match (spec.device, &spec.path) {
            (DeviceKind::Block, Some(path)) => {
                add("device", format!("{used}, {}", path.display()));
            }
            (DeviceKind::Remote, Some(path)) => {
                add("remote", format!("{used}, {}", RemotePath::shown(path)));
            }
            (_, Some(path)) => add("file", format!("{used}, {}", place_of(path, *map_sync))),
            (_, None) if *barred_bytes > 0 => {
                add("memory", format!("{used}, there is no memory for {}", human(*barred_bytes)));
            }
            (_, None) => add("memory", used),
        }
        numa.iter().for_each(|numa| add("numa", numa.shown()));
        log.iter().for_each(|log| add("log", log_line(log)));
        trouble.iter().for_each(|trouble| add("trouble", trouble.to_string()));
        if *promoted_bytes > 0 {
            add(
                "promoted",
                format!("{} that was read here moved to a faster tier", human(*promoted_bytes)),
            );
        }
    }
    if let Some(launch) = report.launches.last() {
        add("ranks", ranks::shown(launch));
        ranks::troubles(launch).for_each(|trouble| add("trouble", trouble));
    }
    let uncaught = report.uncaught.as_deref().map(unserved::line_of_uncaught);
    let unreached = unserved::line_of_unreached(&report.unreached);
    let unserved = unserved::line(&report.unserved).into_iter().chain(unreached).chain(uncaught);
    unserved.for_each(|line| add("programs", line));
    let files = &report.files;
    add("files", format!("{}, {}", count(files.total, "file"), human(files.total_bytes)));
    if report.is_full_of_small_files() {
        let block = human(report.block_bytes);
        add(
            "",
            format!("each takes at least {block}: a new store with --block-size 4K holds more"),
        );
    }
    for (name, number, bytes) in [
        ("inputs", files.inputs, files.inputs_bytes),
        ("drained", files.drained, files.drained_bytes),
        ("undrained", files.undrained, files.undrained_bytes),
        ("open", files.open, files.open_bytes),
        ("unclean", files.unclean, files.unclean_bytes),
    ] {
        if number > 0 {
            add(name, format!("{}, {}", count(number, "file"), human(bytes)));
        }
    }
    if files.absent > 0 {
        let (number, bytes) = (count(files.absent, "file"), human(files.absent_bytes));
        let waits = match files.waited_for {
            0 => String::new(),
            number => format!("; programs wait for {number} of them"),
        };
        let bringing = report.agent.as_ref().and_then(|agent| agent.bringing.as_ref());
        let brought = bringing.map_or(String::new(), brought_so_far);
        let when = match bringing.is_some_and(|bringing| bringing.files > 0) {
            true => "yet to be brought in",
            false => "brought in when programs read them",
        };
        add("absent", format!("{number}, {bytes}, {when}{brought}{waits}"));
    }
    if let Some(Checkpoint { name, step, begun, ended, .. }) = report.checkpoints.last() {
        let name = output::escaped(name.as_bytes());
        add(
            "announced",
            format!("{name}, step {step}: written by {ended} of {begun} that began it"),
        );
    }
    if let Some(last) = report.sets.last() {
        add("complete", set_line(&report.sets, last));
    }
    for behind in &report.behind {
        add("behind", output::escaped(lag::line(behind).as_bytes()));
    }
    match &report.persist {
        Some(persist) => add("persist", persist.display().to_string()),
        None => add("persist", "none: nothing is drained".to_string()),
    }
    if let Some(agent) = &report.agent {
        if let Some(age_ms) = agent.cut_age_ms {
            let age = crate::output::duration::human(age_ms as f64 / 1000.0);
            add("outside", format!("the store as it was {age} ago"));
        }
        if let Some(unsteady) = crate::drain::unsteady(&agent.last.unsteady) {
            add("outside", output::escaped(unsteady.as_bytes()));
        }
    }
    for Rule { from, to } in report.map.rules() {
        add("mapped", format!("{}/{from} to {to}", report.mount));
    }
    if let Some(agent) = &report.agent {
        add("agent", agent_line(agent));
        for Stalled { path, for_s } in &agent.stalled {
            add(
                "hangs",
                format!("{path}: nothing has moved in the persist directory for {for_s} s"),
            );
        }
        for Silent { tier, for_s, is_gone } in &agent.silent {
            match is_gone {
                true => {
                    add("trouble", format!("{tier}: the target has no such namespace any more"))
                }
                false => add(
                    "hangs",
                    format!("{tier}: no answer for {for_s} s; files with data there wait"),
                ),
            }
        }
        pace::line(&agent.pace).iter().for_each(|line| add("pace", line.clone()));
        agent.archive.iter().flat_map(archive::lines).for_each(|line| add("archive", line));
        agent.forecast.iter().for_each(|forecast| add("walltime", walltime::line(forecast)));
        agent.space.iter().flat_map(space_lines).for_each(|line| add("space", line));
        for failed in agent.bringing.iter().flat_map(|bringing| &bringing.failed) {
            add("absent", format!("{}: {}", failed.path, failed.reason));
        }
        for failed in &agent.last.failed {
            add("failed", format!("{}: {}", failed.path, failed.reason));
        }
        agent.unreadable.iter().for_each(|reason| add("trouble", reason.clone()));
    }
    lines
}

/// Returns lines about writers that wait for space, and about files that left the store.
fn space_lines(space: &SpaceStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if space.waiting > 0 {
        let (writers, seconds) = (count(space.waiting, "writer"), space.longest_ms / 1000);
        let verb = if space.waiting == 1 { "waits" } else { "wait" };
        let draining = human(space.draining_bytes);
        lines.push(format!(
            "{writers} {verb} for space, for {seconds} s so far: draining {draining}"
        ));
    }
    if space.given_up_files > 0 {
        let (files, bytes) = (count(space.given_up_files, "file"), human(space.given_up_bytes));
        lines.push(format!("{files}, {bytes}, drained and not kept here (--retain)"));
    }
    if space.released_files > 0 {
        let (files, bytes) = (count(space.released_files, "file"), human(space.released_bytes));
        lines.push(format!("{files}, {bytes}, gave up their room after they were drained"));
    }
    lines
}

fn set_line(sets: &[SetReport], last: &SetReport) -> String {
    let outside = sets.iter().filter(|set| set.level == Level::Pfs).count();
    let number = count(sets.len() as u64, "checkpoint");
    let (name, bytes) = (output::escaped(last.name.as_bytes()), human(last.bytes));
    format!("{number}, {outside} of them drained; the newest is {name}, {bytes}")
}

fn agent_line(agent: &Status) -> String {
    let doing = match agent.phase {
        Phase::Idle => "idle".to_string(),
        Phase::Draining => {
            let (done, total) = (agent.progress.bytes_done, agent.progress.bytes_total);
            format!("draining, {} of {}", human(done), human(total))
        }
        Phase::Retrying => {
            let wait = agent.retry_in_ms.unwrap_or(0).div_ceil(1000);
            let reason = agent.reason.as_deref().unwrap_or("some files failed");
            format!("tries again in {wait} s: {reason}")
        }
    };
    format!("process {}, {doing}", agent.pid)
}
