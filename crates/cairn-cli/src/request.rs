//! The store that the user asks for: options merged, checked, and compared with an existing store.
//!
//! Must stay true: everything that can be refused is refused here, before anything is created.

pub(crate) mod capacity;
pub(crate) mod numa;

use cairn_agent::model::archive::ArchivePolicy;
use cairn_agent::model::error::why;
use cairn_agent::model::job::{Job, Scope, TierSpec};
use cairn_agent::model::log::Level;
use cairn_agent::store::memory::Memory;
use cairn_core::{
    Durability, Geometry, HUGEBLOCK_BYTES_DEFAULT, HUGEBLOCK_BYTES_MIN, MOUNT_BYTES_MAX, Placement,
    Superblock,
};
use cairn_device::MediumKind;
use cairn_device::memory::numa::Topology;
use cairn_job::checkpoint::policy::CheckpointPolicy;
use cairn_job::checkpoint::space_policy::SpacePolicy;
use cairn_job::file::mapping::{Mapping, Rule};
use cairn_job::file::path::FilePath;
use cairn_posix::process::rank;
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::output::waiting::waited_for;

use crate::error::{Error, MountError, Result, SettingError, TierError};
use crate::mount::place::{Hidden, hidden_by};
use crate::request::capacity::{ADDRESSES_SEGMENT_SHARE, Room};
use crate::settings::RunSettings;
use crate::settings::drain_options::DrainRequest;
use crate::settings::input_options::{InputRequest, path_in_store};
use crate::settings::resume_option::Resume;
use crate::settings::space::Quota;
use crate::settings::stage_option::Stage;
use crate::size;
use crate::store::tier::{self, TierPermission, TierRequest};
use crate::store::{Roots, check_job_name};

/// Default mount prefix.
const MOUNT_DEFAULT: &str = "/cairn";
/// Minimum number of inodes, however small the address space is.
const INODES_MIN: u32 = 16 << 10;
/// Minimum number of inodes, however little memory is given for metadata.
const META_INODES_MIN: u32 = 1024;

/// Options that describe a store.
#[derive(Args, Debug, Default)]
pub struct StoreArguments {
    /// Name of the job; an existing store of the job is resumed [default: made from the command,
    /// another one each time]
    #[arg(long, value_name = "NAME", env = "CAIRN_RUN_JOB")]
    pub job: Option<String>,
    /// Prefix below which the program finds the store [default: /cairn]
    #[arg(long, value_name = "PREFIX", env = "CAIRN_RUN_MOUNT")]
    pub mount: Option<String>,
    /// Where data are stored: ram; file:PATH; block:DEVICE; or dax:PATH, a mapped file on
    /// persistent memory; each may be followed by :SIZE. Or
    /// nvme-tcp://HOST:PORT/NQN?nsid=N&size=SIZE&auth=FILE, a namespace of another machine: port,
    /// nsid, size and auth may be omitted; auth=FILE names the file with the secret of this host;
    /// part=2/8 selects the second of eight equal parts (under srun on several nodes, each node
    /// gets its own part automatically); take-over=yes takes the namespace from a dead machine. Or
    /// nvme-tcp:CLUSTER.toml, the part of a target that cairn plan assigns to this node. May be
    /// repeated, or be a list with commas: each tier takes what does not fit into those before it.
    /// Without a size, a tier gets half of the free space: in memory, of the job's limit and the
    /// file system of the store; for a file, of the file system of PATH, at most 1 TiB. A DEVICE or
    /// namespace is used whole. A file name that contains a colon must be followed by a size
    /// [default: ram]
    #[arg(long, value_name = "TIER", env = "CAIRN_RUN_TIER", value_delimiter = ',')]
    pub tier: Vec<String>,
    /// Where metadata are stored: a tier as above, but a file needs a size. In a file or on a
    /// device the metadata survive the loss of the node's memory, together with the data in such
    /// tiers. They need 2 MiB, plus 4 MiB per GiB of the tiers, plus 750 bytes per file. In memory
    /// they need 145 KiB per GiB and 400 bytes per file [default: in the first tier, if that is not
    /// ram; else ram]
    #[arg(long, value_name = "TIER", env = "CAIRN_RUN_META_TIER")]
    pub meta_tier: Option<String>,
    /// When written data survive the loss of the node's memory, if the metadata are not in memory:
    /// once a file is closed or synced, or once each operation returns [default: fsync]
    #[arg(long, value_name = "WHEN", env = "CAIRN_RUN_DURABILITY")]
    pub durability: Option<DurabilityArgument>,
    /// Directory that closed files are drained to, as plain files [default: nothing is drained]
    #[arg(long, value_name = "DIR", env = "CAIRN_RUN_PERSIST")]
    pub persist: Option<PathBuf>,
    /// Directory of the store, as the program sees it or relative to the prefix, and the place
    /// below the persist directory where its files land, as in /cairn/out=results/run7 or
    /// out=results/run7; may be repeated [default: everything lands as it lies in the store]
    #[arg(long, value_name = "FROM=TO", env = "CAIRN_RUN_MAP", value_delimiter = ',')]
    pub map: Vec<String>,
    /// Drain to --persist even if it holds files of other jobs, or of an earlier start of this one.
    /// Only files that this job put there are replaced. If two files have the same name, both stay,
    /// and the exit code is 75
    #[arg(long, value_name = "YES|NO", env = "CAIRN_RUN_SHARED", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub shared: Option<bool>,
    /// Which processes share a tree of files: all processes of the node, or only those of one rank
    /// [default: node]
    #[arg(long, value_name = "SCOPE", env = "CAIRN_RUN_SCOPE")]
    pub scope: Option<ScopeArgument>,
    /// Mount even where this hides an existing file or directory
    #[arg(long, value_name = "YES|NO", env = "CAIRN_RUN_FORCE", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub force: Option<bool>,
    /// Take a device for a new tier even if it holds something, which is lost. Also resume a store
    /// whose tier had write errors with its durable content, even if complete files with data in
    /// memory are lost
    #[arg(long)]
    pub yes: bool,
    /// Use huge pages where the system grants them [default: auto]
    #[arg(long, value_name = "WHEN", env = "CAIRN_RUN_HUGE_PAGES")]
    pub huge_pages: Option<HugePages>,
    /// Allocation unit of a file: 4K, 8K, 16K or 32K. With 4K, many small files need an eighth of
    /// the space, and large files are written up to a quarter slower. An existing store, or a tier
    /// that an earlier store has left, keeps its block size [default: 32K]
    #[arg(long, value_name = "SIZE", env = "CAIRN_RUN_BLOCK_SIZE")]
    pub block_size: Option<String>,
    /// Which NUMA nodes back the tier in memory: the node of the writing thread (local), all nodes
    /// in turn (interleave), or one node (node:N). When a node is full, the others are used
    /// [default: local]
    #[arg(long, value_name = "POLICY", env = "CAIRN_RUN_NUMA")]
    pub numa: Option<String>,
    /// Move data that are read on a tier to an earlier one with free space, in the background, so
    /// that the next read is faster. A quarter of each tier stays free for writes. Only with
    /// metadata in memory: durable data stay where they are
    #[arg(long, value_name = "YES|NO", env = "CAIRN_RUN_PROMOTE", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub promote: Option<bool>,
}

/// Scope of a tree of files, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeArgument {
    /// One tree for all processes of the node
    Node,
    /// One tree for each rank
    Rank,
}

/// When an operation on a durable first tier is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArgument {
    /// When the file is closed or synced
    Fsync,
    /// When the operation returns
    Op,
}

/// When to use huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HugePages {
    /// Where the system grants them
    Auto,
    /// Not at all
    Never,
}

/// The options, merged and checked; None for an option that was not given.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the job.
    pub job: Option<String>,
    /// Mount prefix.
    pub mount: Option<String>,
    /// Tiers in order of preference; empty if none were given.
    pub tiers: Vec<TierRequest>,
    /// Tier of the metadata.
    pub meta: Option<TierRequest>,
    /// Persist directory, absolute.
    pub persist: Option<PathBuf>,
    /// Whether other jobs may have files in the persist directory.
    pub shared: bool,
    /// Whether to set aside first what an earlier start of the job, or another job, has drained
    /// there.
    pub fresh: bool,
    /// Where directories of the store land below the persist directory.
    pub map: Option<Mapping>,
    /// Scope of a tree of files.
    pub scope: Option<Scope>,
    /// Whether to hide what exists at the mount prefix.
    pub force: bool,
    /// Whether to overwrite the content of a device that becomes a new tier.
    pub may_overwrite: bool,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
    /// Block size in bytes.
    pub block_bytes: Option<u32>,
    /// When an operation on a durable first tier is durable.
    pub durability: Durability,
    /// NUMA nodes that back the tier in memory.
    pub placement: Placement,
    /// Whether to move data that are read on slower tiers to faster ones.
    pub promote: bool,
    /// File for the metrics, absolute.
    pub metrics: Option<PathBuf>,
    /// Level of the agent's log.
    pub log: Option<Level>,
    /// Policy of checkpoints and files.
    pub checkpoint: CheckpointPolicy,
    /// Drain options.
    pub drain: DrainRequest,
    /// What stays in the store, and how long a write waits for space.
    pub space: SpacePolicy,
    /// What a new store is filled with.
    pub stage: Stage,
    /// Inputs to stage in before a program runs.
    pub inputs: InputRequest,
    /// Whether a program runs in the store afterwards.
    pub runs_program: bool,
    /// How a run resumes an existing store.
    pub resume: Resume,
    /// Archive of complete checkpoints.
    pub archive: Option<ArchivePolicy>,
    /// Whether to print nothing about chosen values.
    pub quiet: bool,
}

impl Request {
    /// Merges command line and environment with the settings file and checks each value by itself.
    pub fn new(arguments: StoreArguments, settings: RunSettings) -> Result<Request> {
        let tiers = match arguments.tier.is_empty() {
            true => settings.tier.map(|tier| tier.into_vec()).unwrap_or_default(),
            false => arguments.tier,
        };
        let meta = arguments.meta_tier.or(settings.meta_tier);
        let map = match arguments.map.is_empty() {
            true => settings.map.map(|map| map.into_vec()).unwrap_or_default(),
            false => arguments.map,
        };
        let mount = arguments.mount.or(settings.mount).map(checked_mount).transpose()?;
        let request = Request {
            job: arguments.job.or(settings.job),
            map: mapping(&map, mount.as_deref().unwrap_or(MOUNT_DEFAULT))?,
            mount,
            tiers: tier::parse_all(&tiers).map_err(Error::of("--tier"))?,
            meta: meta
                .as_deref()
                .map(tier::parse_meta)
                .transpose()
                .map_err(Error::of("--meta-tier"))?,
            persist: match arguments.persist.or(settings.persist) {
                Some(path) => Some(checked_persist(&path).map_err(Error::of("--persist"))?),
                None => None,
            },
            shared: arguments.shared.or(settings.shared).unwrap_or(false),
            fresh: false,
            scope: scope(arguments.scope, settings.scope)?,
            force: arguments.force.or(settings.force).unwrap_or(false),
            // Never from the environment or a file: such a setting is forgotten, and then a disk is
            // lost.
            may_overwrite: arguments.yes,
            huge_pages: huge_pages(arguments.huge_pages, settings.huge_pages)?,
            block_bytes: arguments
                .block_size
                .or(settings.block_size)
                .map(|size| block_bytes(&size))
                .transpose()?,
            durability: durability(arguments.durability, settings.durability)?,
            placement: numa::placement(arguments.numa.or(settings.numa), &Topology::here())?,
            promote: arguments.promote.or(settings.promote).unwrap_or(false),
            metrics: None,
            log: None,
            checkpoint: CheckpointPolicy::default(),
            drain: DrainRequest::default(),
            space: SpacePolicy::default(),
            stage: Stage::Nothing,
            inputs: InputRequest::default(),
            runs_program: true,
            resume: Resume::default(),
            archive: None,
            quiet: false,
        };
        if let Some(job) = &request.job {
            check_job_name(job).map_err(Error::of("--job"))?;
        }
        if request.scope == Some(Scope::Rank) && request.map.is_some() {
            let problem =
                "with --scope rank each rank drains to its own directory; leave one of them out"
                    .to_string();
            return Err(Error::Setting(SettingError::Map { value: map.join(","), problem }));
        }
        if request.scope == Some(Scope::Rank) {
            let checked = request.meta.iter().try_for_each(tier::check_divisible);
            checked.map_err(Error::of("--meta-tier"))?;
            let checked = request.tiers.iter().try_for_each(tier::check_divisible);
            checked.map_err(Error::of("--tier"))?;
        }
        if let Some(meta) = &request.meta {
            tier::check_beside(meta, &request.tiers).map_err(Error::of("--meta-tier"))?;
        }
        let media = request.meta.as_ref().or(request.tiers.first());
        match media.filter(|media| request.promote && media.path.is_some()) {
            Some(media) => {
                let tier = TierSpec { bytes: 0, ..media.or_of(0) };
                Err(Error::Tier(TierError::Promote { tier: tier::shown(&tier) }))
            }
            None => Ok(request),
        }
    }

    /// Checks values that depend on each other, for a store with this mount prefix and persist
    /// directory.
    pub fn check_places(&self, mount: &str, persist: Option<&Path>) -> Result<()> {
        let prefix = Path::new(mount);
        match hidden_by(prefix)? {
            Hidden::Nothing => {}
            Hidden::Mount(store) if self.is_store_of_job(&store) => {}
            Hidden::Mount(store) => {
                let place = prefix.to_path_buf();
                return Err(Error::Mount(MountError::Mounted { place, store }));
            }
            Hidden::Files if self.force => {}
            Hidden::Files => {
                return Err(Error::Setting(SettingError::MountHides { mount: mount.to_string() }));
            }
        }
        if let Some(persist) = persist.filter(|persist| persist.starts_with(mount)) {
            return Err(Error::of("--persist")(Error::Setting(SettingError::Persist {
                path: persist.to_path_buf(),
                problem: format!("lies below the mount prefix {mount}"),
                advice: "choose another with --persist or --mount",
            })));
        }
        Ok(())
    }

    /// Whether this is a store of this user and this job.
    fn is_store_of_job(&self, store: &Path) -> bool {
        let user = format!("cairn-{}", rustix::process::geteuid().as_raw());
        self.job.as_ref().is_some_and(|job| store.ends_with(Path::new(&user).join(job)))
    }

    /// Returns the mount prefix of a new store.
    pub fn mount_or_default(&self) -> String {
        self.mount.clone().unwrap_or_else(|| MOUNT_DEFAULT.to_string())
    }

    /// Returns the memory that a new store needs, in bytes; None if a size is missing.
    pub fn memory_bytes(&self) -> Option<u64> {
        let mut in_memory = self.wanted().iter().filter(|tier| tier.path.is_none());
        in_memory.try_fold(0, |sum, tier| Some(sum + tier.bytes?))
    }

    /// Returns what may be taken from others for the tier at `path`.
    pub fn licence(&self, path: &Path) -> TierPermission {
        let mut all = self.meta.iter().chain(&self.tiers);
        let takes_over = all.any(|tier| tier.takes_over && tier.path.as_deref() == Some(path));
        TierPermission { may_overwrite: self.may_overwrite, takes_over }
    }

    /// Returns the requested tiers; one in memory if none were requested.
    fn wanted(&self) -> &[TierRequest] {
        match self.tiers.is_empty() {
            true => &[TierRequest::MEMORY],
            false => &self.tiers,
        }
    }

    /// Returns the data tiers of a new store below `root`, and messages about sizes that were
    /// chosen. Tiers of an earlier store keep their size. Errors: there is no space for the tiers
    /// or the metadata at `mount`.
    pub fn tiers_for(
        &self,
        (root, roots): (&Path, &Roots),
        mount: &str,
        memory: &Memory,
    ) -> Result<(Vec<TierSpec>, Vec<String>)> {
        let kept = self.kept_namespace()?;
        let mut wanted = self.wanted().to_vec();
        for (tier, bytes) in wanted.iter_mut().zip(kept.iter().flat_map(tier::kept_sizes)) {
            tier.bytes.get_or_insert(bytes);
        }
        let mut room = Room::new(root, memory, address_space_bytes());
        let mut place = |tier: &TierRequest| match (tier.device.medium(), &tier.path) {
            (Some(kind @ (MediumKind::File | MediumKind::Dax)), Some(path)) => {
                let spec = match kept {
                    Some(_) => tier.or_of(0),
                    None => room.for_file(tier, path, mount)?,
                };
                if kind == MediumKind::Dax {
                    tier::check_mappable(path)?;
                    room.check_mapping(spec.bytes)?;
                }
                Ok(spec)
            }
            (Some(MediumKind::Block | MediumKind::Remote), Some(path)) => {
                tier::check_device(path, kept.is_some(), self.licence(path), roots)?;
                // Its size was read when the option was parsed.
                Ok(tier.or_of(0))
            }
            _ => room.for_memory(tier),
        };
        if let Some(meta) = self.meta.as_ref().filter(|meta| meta.path.is_some()) {
            place(meta).map_err(Error::of("--meta-tier"))?;
        }
        let mut quota = Quota::of(&self.space, &wanted)?;
        let limited = |tier: &TierRequest| match &mut quota {
            Some(quota) => place(tier).and_then(|spec| quota.limit(tier, spec)),
            None => place(tier),
        };
        let tiers: Result<Vec<TierSpec>> = wanted.iter().map(limited).collect();
        let tiers = tiers.map_err(|error| match error {
            Error::Tier(TierError::Quota { .. }) => error,
            _ => Error::of("--tier")(error),
        })?;
        let unsaid = wanted.iter().zip(&tiers).filter(|(wanted, _)| wanted.bytes.is_none());
        let notes = unsaid.map(|(_, tier)| chosen(tier)).collect();
        Ok((tiers, notes))
    }

    /// Returns the superblock of an earlier store at the place for the metadata.
    fn kept_namespace(&self) -> Result<Option<Superblock>> {
        let option = if self.meta.is_some() { "--meta-tier" } else { "--tier" };
        let media = self.meta.as_ref().or(self.wanted().first());
        match media.and_then(|media| Some((media.device.medium()?, media.path.as_deref()?))) {
            Some((kind, path)) => {
                tier::kept_namespace(kind, path, self.licence(path)).map_err(Error::of(option))
            }
            None => Ok(None),
        }
    }

    /// Returns the tier of the metadata. In memory without a given size it has 0 bytes.
    pub fn meta_spec(&self) -> Option<TierSpec> {
        self.meta.as_ref().map(|meta| meta.or_of(0))
    }

    /// Refuses options that contradict the store that is resumed.
    pub fn check_against(&self, job: &Job) -> Result<()> {
        let differ = |option, given: Option<String>, stored: String| match given {
            Some(given) if given != stored => Err(Error::Setting(SettingError::Contradiction {
                option,
                given,
                stored,
                job: job.job.clone(),
            })),
            _ => Ok(()),
        };
        differ("--mount", self.mount.clone(), job.mount.clone())?;
        // A tier without a given size has the size of the store.
        let stored = job.tiers.iter().map(|tier| tier.bytes).chain(std::iter::repeat(0));
        let given: Vec<TierSpec> =
            self.tiers.iter().zip(stored).map(|(tier, bytes)| tier.or_of(bytes)).collect();
        let given = Some(tier::list(&given)).filter(|_| !given.is_empty());
        differ("--tier", given, tier::list(&job.tiers))?;
        let stored = job.meta.as_ref().map_or("no --meta-tier".to_string(), tier::shown);
        differ("--meta-tier", self.meta_spec().as_ref().map(tier::shown), stored)?;
        let text = |path: &PathBuf| path.display().to_string();
        let stored = job.persist.as_ref().map_or("no --persist".to_string(), text);
        differ("--persist", self.persist.as_ref().map(text), stored)?;
        let given = self.map.as_ref().map(shown_mapping);
        differ("--map", given, shown_mapping(&job.map))?;
        let promotes = |promotes| if promotes { "--promote" } else { "no --promote" }.to_string();
        differ("option", Some(promotes(true)).filter(|_| self.promote), promotes(job.promote))?;
        differ("--scope", self.scope.map(|scope| scope.to_string()), job.scope.to_string())
    }
}

/// Parses `--map`; None if it is empty. `mount` is the prefix with which directories of the store
/// may begin.
fn mapping(values: &[String], mount: &str) -> Result<Option<Mapping>> {
    let rule = |value: &String| {
        let refuse = |problem: &str| {
            Error::Setting(SettingError::Map { value: value.clone(), problem: problem.into() })
        };
        let (from, to) = value.split_once('=').ok_or_else(|| refuse("write FROM=TO"))?;
        let from = path_in_store(from, mount).map_err(|problem| refuse(&problem))?;
        if to.starts_with('/') {
            return Err(refuse("the place must be relative to the persist directory"));
        }
        let to = FilePath::parse(to.as_bytes());
        let problem = "the place must stay below the persist directory, without ..";
        Ok(Rule { from, to: to.ok_or_else(|| refuse(problem))? })
    };
    if values.is_empty() {
        return Ok(None);
    }
    let mapping = Mapping::new(values.iter().map(rule).collect::<Result<_>>()?);
    mapping
        .map(Some)
        .map_err(|problem| Error::Setting(SettingError::Map { value: values.join(","), problem }))
}

/// Returns a mapping in the syntax of `--map`.
pub fn shown_mapping(mapping: &Mapping) -> String {
    let rules = mapping.rules().iter().map(|rule| format!("{}={}", rule.from, rule.to));
    match rules.collect::<Vec<_>>() {
        none if none.is_empty() => "no --map".to_string(),
        rules => rules.join(","),
    }
}

fn checked_mount(mount: String) -> Result<String> {
    let trimmed = mount.trim_end_matches('/');
    let plain = |name: &str| !matches!(name, "" | "." | "..");
    let problem = match trimmed.strip_prefix('/') {
        _ if !mount.starts_with('/') => Some("is relative"),
        None => Some("is the root directory"),
        Some(rest) if !rest.split('/').all(plain) => Some("has an empty, `.` or `..` component"),
        Some(_) if trimmed.len() > MOUNT_BYTES_MAX => Some("is too long"),
        Some(_) => None,
    };
    match problem {
        Some(problem) => Err(Error::Setting(SettingError::Mount { mount, problem })),
        None => Ok(trimmed.to_string()),
    }
}

/// Checks a directory that files can be drained to. Returns its absolute path.
pub fn checked_persist(path: &Path) -> Result<PathBuf> {
    waited_for(path, || check_persist(path))
}

/// The persist directory that a run has created. It is removed again if the run is refused, unless
/// this is one of several runs that a launcher starts: others may have found it by then.
pub struct MadePersist(Option<PathBuf>);

impl MadePersist {
    /// Creates the directory for a run that begins anew, if its parent exists. Not for a run that
    /// resumes or stages: for such a run, a missing directory means a wrong path.
    pub fn make(path: Option<&PathBuf>) -> MadePersist {
        MadePersist(path.filter(|path| fs::create_dir(path).is_ok()).cloned())
    }

    /// Keeps the directory and says that it was created.
    pub fn keep(mut self) {
        if let Some(path) = self.0.take() {
            crate::output::say!("cairn: made the directory {}", path.display());
        }
    }
}

impl Drop for MadePersist {
    fn drop(&mut self) {
        if let Some(path) = self.0.as_ref().filter(|_| rank::seat().is_none()) {
            // It stays if anything is in it by now.
            let _ = fs::remove_dir(path);
        }
    }
}

fn check_persist(path: &Path) -> Result<PathBuf> {
    let refused = |problem: String, advice| {
        Error::Setting(SettingError::Persist { path: path.to_path_buf(), problem, advice })
    };
    let absolute = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            refused("does not exist".to_string(), "create it first, with mkdir -p")
        }
        _ => refused(format!("cannot be used: {}", why(&error)), "choose another"),
    })?;
    if !absolute.is_dir() {
        return Err(refused("is not a directory".to_string(), "choose another"));
    }
    probe(&absolute).map_err(|errno| {
        let problem = format!("cannot be written to: {}", why(&errno.into()));
        refused(problem, "choose another or change its permissions")
    })?;
    Ok(absolute)
}

/// Makes a file in `directory` and removes it. Whoever is killed in between leaves nothing, or, on
/// file systems without nameless files, what the next call removes.
fn probe(directory: &Path) -> rustix::io::Result<()> {
    let (flags, mode) = (OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
        opened => return opened.map(drop),
    }
    let name = directory.join(".cairn-probe");
    match rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    match rustix::fs::unlink(&name) {
        // Another process has removed it.
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Returns the address space limit of a process in bytes, if there is one.
pub fn address_space_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::As).current
}

/// Sets the number of inodes to what fits into `bytes` of memory. Errors: the number of bytes that
/// the minimum needs.
pub fn fit_metadata(geometry: &mut Geometry, bytes: u64) -> core::result::Result<(), u64> {
    let with = |inode_capacity| Geometry { inode_capacity, ..geometry.clone() };
    let fits = |inodes: u32| with(inodes).segment_bytes() <= bytes;
    if !fits(META_INODES_MIN) {
        return Err(with(META_INODES_MIN).segment_bytes());
    }
    let (mut fitting, mut most) = (META_INODES_MIN, geometry.inode_capacity);
    while fitting < most {
        let inodes = fitting + (most - fitting).div_ceil(2);
        match fits(inodes) {
            true => fitting = inodes,
            false => most = inodes - 1,
        }
    }
    geometry.inode_capacity = fitting;
    Ok(())
}

/// Halves the number of inodes until the meta segment fits into the address space.
pub fn fit_segment(geometry: &mut Geometry, addresses: Option<u64>) {
    let most = addresses.unwrap_or(u64::MAX) / ADDRESSES_SEGMENT_SHARE;
    while geometry.segment_bytes() > most && geometry.inode_capacity > INODES_MIN {
        geometry.inode_capacity /= 2;
    }
}

/// Returns a message about the size that was chosen for a tier.
fn chosen(tier: &TierSpec) -> String {
    let bytes = size::human(tier.bytes);
    match &tier.path {
        Some(path) => {
            let path = path.display();
            format!("the store has {bytes} in {path}; to choose the size: --tier file:PATH:SIZE")
        }
        None => format!("the store has {bytes} of memory; to choose the size: --tier ram:SIZE"),
    }
}

fn scope(argument: Option<ScopeArgument>, setting: Option<String>) -> Result<Option<Scope>> {
    match (argument, setting.as_deref()) {
        (Some(ScopeArgument::Node), _) | (None, Some("node")) => Ok(Some(Scope::Node)),
        (Some(ScopeArgument::Rank), _) | (None, Some("rank")) => Ok(Some(Scope::Rank)),
        (None, None) => Ok(None),
        (None, Some(value)) => Err(Error::Setting(SettingError::Value {
            option: "--scope",
            value: value.to_string(),
            expected: "node or rank",
        })),
    }
}

fn durability(argument: Option<DurabilityArgument>, setting: Option<String>) -> Result<Durability> {
    match (argument, setting.as_deref()) {
        (Some(DurabilityArgument::Op), _) | (None, Some("op")) => Ok(Durability::Operation),
        (Some(DurabilityArgument::Fsync), _) | (None, None | Some("fsync")) => Ok(Durability::Sync),
        (None, Some(value)) => Err(Error::Setting(SettingError::Value {
            option: "--durability",
            value: value.to_string(),
            expected: "fsync or op",
        })),
    }
}

fn block_bytes(value: &str) -> Result<u32> {
    let fits = |&bytes: &u32| {
        bytes.is_power_of_two() && (HUGEBLOCK_BYTES_MIN..=HUGEBLOCK_BYTES_DEFAULT).contains(&bytes)
    };
    let bytes = size::parse(value).and_then(|bytes| u32::try_from(bytes).ok()).filter(fits);
    bytes.ok_or_else(|| {
        Error::Setting(SettingError::Value {
            option: "--block-size",
            value: value.to_string(),
            expected: "4K, 8K, 16K or 32K",
        })
    })
}

fn huge_pages(argument: Option<HugePages>, setting: Option<String>) -> Result<bool> {
    match (argument, setting.as_deref()) {
        (Some(HugePages::Never), _) | (None, Some("never")) => Ok(false),
        (Some(HugePages::Auto), _) | (None, None | Some("auto")) => Ok(true),
        (None, Some(value)) => Err(Error::Setting(SettingError::Value {
            option: "--huge-pages",
            value: value.to_string(),
            expected: "auto or never",
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_agent::model::job::DeviceKind;

    fn request(arguments: StoreArguments) -> Result<Request> {
        Request::new(arguments, RunSettings::default())
    }

    #[test]
    fn bad_values_are_refused_with_one_line() {
        let mount = |mount: &str| StoreArguments {
            mount: Some(mount.to_string()),
            ..StoreArguments::default()
        };
        let tier = |tiers: &[&str]| StoreArguments {
            tier: tiers.iter().map(ToString::to_string).collect(),
            ..StoreArguments::default()
        };
        let meta = |meta: &str| StoreArguments {
            meta_tier: Some(meta.to_string()),
            ..StoreArguments::default()
        };
        let promote = |meta: Option<&str>, tiers: &[&str]| StoreArguments {
            meta_tier: meta.map(str::to_string),
            promote: Some(true),
            ..tier(tiers)
        };
        for (arguments, part) in [
            (mount("cairn"), "is relative"),
            (mount("/"), "root directory"),
            (mount("/a//b"), "component"),
            (mount("/a/../b"), "component"),
            (tier(&["ram:8GX"]), "\"8GX\" is not a size"),
            (tier(&["8G"]), "not a tier"),
            (tier(&["disk:8G"]), "not a tier"),
            (tier(&["ram:1"]), "too small"),
            (tier(&["ram:1G", "ram:2G"]), "second tier in the same place"),
            (meta("file:/tmp/x"), "write file:/tmp/x:SIZE"),
            (meta("raw"), "not a tier"),
            (promote(Some("file:/tmp/x:1G"), &["ram"]), "file:/tmp/x makes it durable"),
            (promote(None, &["file:/tmp/x:1G", "ram:1G"]), "file:/tmp/x makes it durable"),
        ] {
            let error = request(arguments).expect_err(part);
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let settings = RunSettings {
            mount: Some("/file".to_string()),
            scope: Some("rank".to_string()),
            ..RunSettings::default()
        };
        let arguments =
            StoreArguments { mount: Some("/line/".to_string()), ..StoreArguments::default() };
        let request = Request::new(arguments, settings).expect("is fine");
        assert_eq!(request.mount.as_deref(), Some("/line"));
        assert_eq!(request.scope, Some(Scope::Rank));
    }

    #[test]
    fn contradictions_name_both_values() {
        let job = Job {
            format: 1,
            job: "melt".into(),
            store: "0".into(),
            mount: "/cairn".into(),
            persist: None,
            map: Mapping::default(),
            persist_id: None,
            shared: false,
            launch: None,
            scope: Scope::Node,
            tiers: vec![TierSpec { device: DeviceKind::Ram, path: None, bytes: 1 << 30 }],
            meta: None,
            promote: false,
            runs: 1,
            pending: None,
            recovered: None,
            metrics: None,
            log: Level::default(),
            checkpoint: CheckpointPolicy::default(),
            drain: DrainRequest::default().policy(),
            space: SpacePolicy::default(),
            archive: None,
            created: 0,
            command: Vec::new(),
        };
        let arguments = StoreArguments { mount: Some("/x".into()), ..StoreArguments::default() };
        let error = request(arguments).expect("is fine").check_against(&job).expect_err("differs");
        let text = error.to_string();
        assert!(text.contains("--mount /x") && text.contains("/cairn"), "{text}");
        let same = StoreArguments { tier: vec!["ram:1G".into()], ..StoreArguments::default() };
        request(same).expect("is fine").check_against(&job).expect("is the same");
        let sizeless = StoreArguments { tier: vec!["ram".into()], ..StoreArguments::default() };
        request(sizeless).expect("is fine").check_against(&job).expect("has the size it has");
    }

    #[test]
    fn segment_fits_a_small_address_space() {
        let addresses = 4_000_000 << 10;
        let mut geometry = Geometry::new(b"/cairn", [1 << 14, 0, 0, 0], 0);
        let usual = geometry.clone();
        fit_segment(&mut geometry, None);
        assert_eq!(geometry, usual);
        fit_segment(&mut geometry, Some(addresses));
        assert!(geometry.segment_bytes() <= addresses / ADDRESSES_SEGMENT_SHARE);
        assert!(geometry.inode_capacity >= 1 << 19, "{}", geometry.inode_capacity);
    }
}
