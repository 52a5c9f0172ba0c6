//! Obtains a claim of a store for a run: makes the store, or resumes the one that is there.
//!
//! Must stay true: what a failed attempt made is removed. Nothing runs on a namespace that was not
//! checked.
//!
//! Does not lock or remove stores; `claim.rs` does.

use cairn_agent::model::directory_id::DirectoryId;
use cairn_agent::model::job::{AGENT_LOCK, DeviceKind, JOB_FORMAT, Job, Scope, TierSpec};
use cairn_agent::model::lock;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::ledger::Ledger;
use cairn_agent::persist::manifest_file;
use cairn_agent::store::memory::Memory;
use cairn_agent::store::reaper;
use cairn_agent::store::volume::Volume;
use cairn_core::{Geometry, HUGEBLOCK_BYTES_DEFAULT, Superblock, TIERS_MAX};
use cairn_device::media::media_file::Allocation;
use cairn_device::store::namespace::{self, Creation};
use cairn_device::store::notes::{Kind, NOTES_FILE};
use cairn_device::{Store, TierPlace};
use cairn_job::file::mapping::Mapping;
use cairn_job::outside::manifest::{LogPosition, Manifest};
use cairn_posix::process::rank;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::claim::{Claim, lock as lock_for_run, random_bytes, random_hex};
use crate::create::claimed_tiers::{self, ClaimedTiers};
use crate::create::staging;
use crate::drain::checkpoints;
use crate::error::{Error, PersistError, Result, SettingError, StageError, StoreError, TierError};
use crate::request::{Request, address_space_bytes, fit_metadata, fit_segment, shown_mapping};
use crate::resume::media_rebuild::{self, Failed};
use crate::resume::restart_check;
use crate::resume::{ownership, recovery_report};
use crate::settings::input_options::InputRequest;
use crate::settings::resume_option::Resume;
use crate::settings::space::check_quota;
use crate::size;
use crate::store::creation::{is_blank, is_described};
use crate::store::{NODE, OpenStore, Roots, refuse, removal, survey, tier};

/// Maximum number of attempts to enter a store that other commands remove meanwhile.
const ATTEMPTS_MAX: u32 = 8;
/// Letters of the random part of a name; letters that look alike are left out.
const NAME_LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
/// Maximum length of the part of a name that comes from the command.
const NAME_STEM_MAX: usize = 16;

/// How a run enters a store.
pub struct Entrance<'a> {
    /// Takes the run lock of the store in a directory, given the job's name.
    pub take: &'a dyn Fn(&Path, &str) -> Result<File>,
    /// Records in the store's directory who is creating or verifying it. Called before that takes
    /// long.
    pub sign: &'a dyn Fn(&Path) -> Result<()>,
    /// Records in the directory of a new store why it could not be created. Called before the
    /// directory is removed.
    pub give_up: &'a dyn Fn(&Path, &Error),
}

/// Entrance of a run without other ranks.
const ALONE: Entrance<'_> =
    Entrance { take: &lock_for_run, sign: &|_| Ok(()), give_up: &|_, _| () };

/// Metadata that an earlier store has left in a file or on a device.
#[derive(Clone, Copy)]
struct Kept<'a> {
    path: &'a Path,
    block_bytes: u32,
}

impl Claim {
    /// Returns the store of the job that `request` names if it exists, else a new one for
    /// `command`.
    pub fn obtain(roots: &Roots, request: &Request, command: &[String]) -> Result<Claim> {
        Claim::obtain_by(roots, request, command, &ALONE)
    }

    /// Does the same through another entrance.
    pub fn obtain_by(
        roots: &Roots,
        request: &Request,
        command: &[String],
        entrance: &Entrance<'_>,
    ) -> Result<Claim> {
        let mut attempts = 1;
        loop {
            let directory = request.job.as_deref().and_then(|job| roots.find(job));
            let directory = directory.filter(|directory| is_described(directory));
            let claimed = match &directory {
                Some(directory) => OpenStore::open(directory)
                    .and_then(|store| (entrance.take)(directory, &store.job.job))
                    .and_then(|lock| {
                        Claim::resume(roots, directory, (request, command), lock, entrance)
                    }),
                None => Claim::create_by(roots, request, command, entrance),
            };
            let claimed = claimed.and_then(|claim| claim.with_inputs(request, entrance));
            match claimed {
                // `cairn gc` or `cairn rm` removed the store after it was found.
                Err(error) if error.is_about_nothing_there() && attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                }
                claimed => return claimed,
            }
        }
    }

    /// Stages in the inputs of the job, unless this run joins others: the first one does. If that
    /// fails, what is staged stays for the next attempt; but a new store is removed if it is empty,
    /// or too small for its inputs.
    fn with_inputs(self, request: &Request, entrance: &Entrance<'_>) -> Result<Claim> {
        if lock::is_shared(self.lock()) {
            return Ok(self);
        }
        let staged = self.check_sources(&request.inputs).and_then(|()| {
            staging::inputs::stage(&self, &request.inputs, request.stage, request.quiet)
        });
        match staged {
            Ok(()) => Ok(self),
            Err(error) => {
                (entrance.give_up)(self.store.directory(), &error);
                let has_files = |volumes: Vec<Volume>| {
                    volumes.iter().any(|volume| volume.tree().map_or(true, |tree| !tree.is_empty()))
                };
                let is_too_small = matches!(error, Error::Stage(StageError::NoRoom { .. }));
                let is_useless = is_too_small || !self.store.volumes().is_ok_and(has_files);
                if self.is_new && is_useless {
                    // The first error is the one to report.
                    let _ = self.remove();
                }
                Err(error)
            }
        }
    }

    /// Refuses sources that the drain could replace. What the job drained comes back by `--stage`.
    fn check_sources(&self, inputs: &InputRequest) -> Result<()> {
        let Some(persist) = &self.store.job.persist else { return Ok(()) };
        let is_there = |source: &Path| source.starts_with(persist) || persist.starts_with(source);
        match inputs.named.iter().find(|input| is_there(&input.source)) {
            Some(input) => Err(Error::Stage(StageError::InPersist {
                path: input.source.clone(),
                persist: persist.clone(),
            })),
            None => Ok(()),
        }
    }

    fn resume(
        roots: &Roots,
        directory: &Path,
        (request, command): (&Request, &[String]),
        lock: File,
        entrance: &Entrance<'_>,
    ) -> Result<Claim> {
        let store = OpenStore::open(directory)?;
        if staging::was_cut_off(directory) {
            // The filling of the store was cut off, so everything in it exists elsewhere.
            Store::open(directory)?.remove()?;
            if request.stage.fills() && request.check_against(&store.job).is_ok() {
                let description = Description::of_again(directory, &store.job, command);
                return Claim::create_described(roots, (request, command), description, entrance);
            }
            return Err(Error::Store(StoreError::NotAStore { path: directory.to_path_buf() }));
        }
        store.job.tiers.iter().try_for_each(tier::check_kept_device)?;
        request.check_against(&store.job)?;
        request.check_places(&store.job.mount, store.job.persist.as_deref())?;
        if let Some(persist) = &store.job.persist {
            crate::request::checked_persist(persist)?;
            check_persist(persist, &store.job)?;
        }
        let mut claim = Claim::of(store, false, lock);
        let device_store = Store::open(directory).map_err(refuse)?;
        let mut taken = ClaimedTiers::default();
        if device_store.namespaces().map_err(refuse)?.is_empty() {
            // The process that wrote the description was killed before it created the namespace.
            claim.make_namespace(roots, &device_store, request)?;
            recovery_report::say(&claim, request.stage)?;
        } else {
            taken.take_over(&claim.store.job, request)?;
        }
        let joins = lock::is_shared(claim.lock());
        if !joins {
            claim.renew(roots, &device_store, request)?;
        }
        // Refuses a damaged or newer namespace before anything runs on it.
        let volumes = claim.store.volumes()?;
        if !joins {
            // Files that killed processes had open must count as those processes left them. Some of
            // these processes may still be dying.
            survey::programs(&claim.store)?;
            volumes.iter().try_for_each(|volume| reaper::visit(volume).map(drop))?;
            restart_check::settle(&claim, &volumes)?;
        }
        if !joins && !lock::is_locked(directory, AGENT_LOCK)? {
            checkpoints::begin_run(&claim.store, &volumes)?;
        }
        claim.change(request)?;
        let has_failed = claim.store.job.pending.is_some();
        claim.begin_run(request, command)?;
        if !joins && request.resume == Resume::Checked {
            (entrance.sign)(directory)?;
            restart_check::verify(&claim, request.quiet)?;
            if has_failed {
                restart_check::set_unfinished_aside(&claim, request.quiet)?;
            }
            if has_failed && claim.may_end_by(command) {
                restart_check::make_torn_files_whole(&claim, request.quiet)?;
            }
        }
        if !joins {
            claim.say_what_is_there(request);
        }
        taken.keep();
        Ok(claim)
    }

    /// Prints from which checkpoints the command can continue.
    fn say_what_is_there(&self, request: &Request) {
        if request.quiet {
            return;
        }
        let line = restart_check::line(self).unwrap_or_else(|error| {
            Some(format!("cannot tell which checkpoints are complete: {error}"))
        });
        line.iter().for_each(|line| crate::output::say!("cairn: {}: {line}", self.store.job.job));
    }

    /// Rebuilds the store from its media if writing to them failed. Errors: those of
    /// `Failed::find`.
    fn renew(&mut self, roots: &Roots, device_store: &Store, request: &Request) -> Result<()> {
        let Some(failed) = Failed::find(&self.store, request)? else { return Ok(()) };
        let _no_agent = self.without_agent()?;
        failed
            .lines(&self.store.job.job)
            .iter()
            .for_each(|line| crate::output::say!("cairn: {line}"));
        media_rebuild::forget_segments(&mut self.store, device_store)?;
        self.make_namespace(roots, device_store, request)?;
        recovery_report::say(self, request.stage)
    }

    /// Records the new run and its changed options. A run that joins others is not counted.
    fn begin_run(&mut self, request: &Request, command: &[String]) -> Result<()> {
        if request.runs_program && !lock::is_shared(self.lock()) {
            self.note_run()?;
        }
        let mut job = self.store.job.clone();
        job.runs += u64::from(request.runs_program && !lock::is_shared(self.lock()));
        job.pending = job.pending.or_else(|| Job::executable(command));
        if !request.checkpoint.is_default() {
            job.checkpoint = request.checkpoint.clone();
        }
        if request.metrics.is_some() {
            job.metrics = request.metrics.clone();
        }
        job.log = request.log.unwrap_or(job.log);
        job.archive = request.archive.clone().or(job.archive);
        self.save(job)
    }

    /// Notes, behind the marks of programs, that those who made them are dead.
    fn note_run(&self) -> Result<()> {
        match self.store.directory().join(NOTES_FILE).exists() {
            true => self.note(Kind::Run, 0, vec![b'-']),
            false => Ok(()),
        }
    }

    /// Applies changed drain and space options; the agent notices them.
    fn change(&mut self, request: &Request) -> Result<()> {
        let (mut job, space) = (self.store.job.clone(), &request.space);
        request.drain.change(&mut job.drain);
        if !space.is_empty() && *space != job.space {
            check_quota(space, &job.tiers)?;
            job.space = space.clone();
        }
        self.save(job)
    }

    /// Creates a new store.
    pub fn create(roots: &Roots, request: &Request, command: &[String]) -> Result<Claim> {
        Claim::create_by(roots, request, command, &ALONE)
    }

    fn create_by(
        roots: &Roots,
        request: &Request,
        command: &[String],
        entrance: &Entrance<'_>,
    ) -> Result<Claim> {
        if let Some(job) = &request.job {
            removal::finish_before(roots, job);
        }
        let description = Description::of_new(roots, request, command)?;
        Claim::create_described(roots, (request, command), description, entrance)
    }

    fn create_described(
        roots: &Roots,
        (request, command): (&Request, &[String]),
        Description { root, job, goes_on, notes }: Description,
        entrance: &Entrance<'_>,
    ) -> Result<Claim> {
        let has_inputs = !request.inputs.named.is_empty();
        let has_source = job.persist.is_some() || job.archive.is_some() || has_inputs;
        if request.stage.fills() && !has_source {
            return Err(Error::Persist(PersistError::NothingToStage));
        }
        let device_store = Store::create(&root, &job.job).map_err(refuse)?;
        let directory = device_store.path().to_path_buf();
        let lock = (entrance.take)(&directory, &job.job)?;
        if request.job.is_some() && is_described(&directory) {
            // Another process created the store first.
            return Claim::resume(roots, &directory, (request, command), lock, entrance);
        }
        if !is_blank(&directory)? {
            return Err(Error::Store(StoreError::NotAStore { path: directory }));
        }
        let announced = staging::announce(&directory, request.stage);
        let made = announced.and_then(|()| Ok(job.save(&directory)?)).and_then(|()| {
            (entrance.sign)(&directory)?;
            let store = OpenStore::open(&directory)?;
            Ok(Claim::of(store, true, lock))
        });
        let made = made.and_then(|mut claim| {
            let made = claim.make_namespace(roots, &device_store, request);
            // Done while this process holds the lock, so that waiting ranks learn of a failure
            // before they get the lock.
            made.and_then(|()| staging::before_run(&claim, request.stage))
                .inspect_err(|error| (entrance.give_up)(&directory, error))?;
            Ok(claim)
        });
        match made {
            Ok(_) if request.quiet => {}
            Ok(_) => notes.iter().for_each(|note| crate::output::say!("cairn: {note}")),
            // Nothing existed here before. The first error is the one to report.
            Err(_) => drop(device_store.remove()),
        }
        made.and_then(|mut claim| {
            recovery_report::say(&claim, request.stage)?;
            if goes_on {
                // Otherwise the files of this run would be taken for leftovers of the run before.
                checkpoints::begin_run(&claim.store, &claim.store.volumes()?)?;
                claim.change(request)?;
                claim.begin_run(request, command)?;
            }
            if !claim.is_new {
                let volumes = claim.store.volumes()?;
                restart_check::settle(&claim, &volumes)?;
                // Nobody knows how the run ended that left the tier. What it left unfinished stays
                // unfinished.
                checkpoints::begin_run(&claim.store, &volumes)?;
                claim.begin_run(request, command)?;
            }
            if !claim.is_new && request.resume == Resume::Checked {
                restart_check::verify(&claim, request.quiet)?;
                restart_check::set_unfinished_aside(&claim, request.quiet)?;
            }
            if request.resume == Resume::Checked && claim.may_end_by(command) {
                restart_check::make_torn_files_whole(&claim, request.quiet)?;
            }
            if !claim.is_new {
                claim.say_what_is_there(request);
            }
            Ok(claim)
        })
    }

    /// Creates the node's namespace, or recreates it from the media of an earlier store.
    fn make_namespace(&mut self, roots: &Roots, store: &Store, request: &Request) -> Result<()> {
        namespace::remove_unfinished(store, NODE)?;
        let kept = self.kept_media(request)?;
        if kept.is_none() {
            ownership::settle(&self.store.job, request)?;
        }
        claimed_tiers::check(&self.store.job, request, roots, kept.is_some())?;
        if kept.is_some() {
            staging::withdraw(self.store.directory())?;
        }
        let creation = self.creation(store, request, kept)?;
        let mut claimed = ClaimedTiers::default();
        claimed.claim(&self.store.job, request, kept.is_some())?;
        namespace::create(store, NODE, creation).map_err(|error| match kept {
            Some(kept) => tier::refuse_kept(kept.path)(error),
            None => error.into(),
        })?;
        claimed.keep();
        self.is_new = kept.is_none();
        if !self.is_new {
            let recovered = self.store.volumes()?.first().and_then(Volume::position);
            // The log that it was recovered from is that of the epoch before.
            let recovered =
                recovered.map(|now| LogPosition { epoch: now.epoch.saturating_sub(1), ..now });
            let job = Job { recovered, ..self.store.job.clone() };
            job.save(self.store.directory())?;
            self.store.job = job;
        }
        Ok(())
    }

    /// Returns the parameters of the node's namespace, on media of an earlier store or on new ones.
    fn creation(&self, store: &Store, request: &Request, kept: Option<Kept>) -> Result<Creation> {
        let (job, is_kept) = (&self.store.job, kept.is_some());
        let block_bytes = kept.map(|kept| kept.block_bytes).or(request.block_bytes);
        let places = job.all_tiers().map(|tier| place(store, tier, is_kept));
        let creation = Creation {
            geometry: self.geometry(request, block_bytes.unwrap_or(HUGEBLOCK_BYTES_DEFAULT))?,
            metadata_bytes: job.metadata_tier().map_or(0, |tier| tier.bytes),
            places: places.collect::<Result<_>>()?,
            want_huge_pages: request.huge_pages,
            // With scope `rank`, ranks have namespaces of their own, and nobody writes to the
            // node's.
            allocation: match job.scope {
                Scope::Node => Allocation::AtOnce,
                Scope::Rank => Allocation::AsWritten,
            },
            may_overwrite: request.may_overwrite,
        };
        match job.metadata_tier() {
            Some(tier) if !is_kept && tier.bytes < creation.least_metadata_bytes() => {
                Err(too_small(tier, creation.least_metadata_bytes()))
            }
            _ => Ok(creation),
        }
    }

    fn geometry(&self, request: &Request, block_bytes: u32) -> Result<Geometry> {
        let job = &self.store.job;
        let mut tier_blocks = [0; TIERS_MAX];
        let first_with_data = usize::from(job.metadata_tier().is_some());
        for (blocks, tier) in tier_blocks[first_with_data..].iter_mut().zip(&job.tiers) {
            let count = tier.bytes / u64::from(block_bytes);
            *blocks = u32::try_from(count).map_err(|_| {
                Error::Setting(SettingError::Value {
                    option: "--block-size",
                    value: size::exact(block_bytes.into()),
                    expected: "larger: a tier has 4294967295 blocks at most",
                })
            })?;
        }
        let mut geometry = Geometry {
            hugeblock_bytes: block_bytes,
            ..Geometry::new(job.mount.as_bytes(), tier_blocks, 0)
        };
        geometry.durability = Some(request.durability).filter(|_| job.media().is_some());
        geometry.placement = request.placement;
        fit_segment(&mut geometry, address_space_bytes());
        let in_memory = job.meta.as_ref().filter(|tier| tier.path.is_none() && tier.bytes > 0);
        if let Some(tier) = in_memory {
            fit_metadata(&mut geometry, tier.bytes).map_err(|least| too_small(tier, least))?;
        }
        Ok(geometry)
    }

    /// Returns the metadata of an earlier store if the job's media hold some. Errors: they have
    /// another prefix or other tiers.
    fn kept_media(&self, request: &Request) -> Result<Option<Kept<'_>>> {
        let job = &self.store.job;
        let Some((media, kind, path)) = job
            .media()
            .and_then(|media| Some((media, media.device.medium()?, media.path.as_deref()?)))
        else {
            return Ok(None);
        };
        let Some(superblock) = tier::kept_namespace(kind, path, request.licence(path))? else {
            return Ok(None);
        };
        let mount = String::from_utf8_lossy(&superblock.geometry.mount).into_owned();
        let (meta, tiers) = kept_tiers(job, media, &superblock);
        let shown = |meta: &Option<TierSpec>| meta.as_ref().map_or("none".to_string(), tier::shown);
        for (option, given, stored) in [
            ("--mount", job.mount.clone(), mount),
            ("--meta-tier", shown(&job.meta), shown(&meta)),
            ("--tier", tier::list(&job.tiers), tier::list(&tiers)),
        ] {
            if given != stored {
                return Err(Error::Setting(SettingError::Contradiction {
                    option,
                    given,
                    stored,
                    job: job.job.clone(),
                }));
            }
        }
        Ok(Some(Kept { path, block_bytes: superblock.geometry.hugeblock_bytes }))
    }
}

/// A store that is still to be created.
struct Description {
    /// Store root to create it in.
    root: PathBuf,
    job: Job,
    /// Whether it replaces an earlier store of the job.
    goes_on: bool,
    /// Messages for the user about chosen values.
    notes: Vec<String>,
}

impl Description {
    /// Describes the store that `request` asks for.
    fn of_new(roots: &Roots, request: &Request, command: &[String]) -> Result<Description> {
        let mount = request.mount_or_default();
        request.check_places(&mount, request.persist.as_deref())?;
        let persist_id = request.persist.as_deref().map(DirectoryId::at).transpose()?;
        let (root, note) = roots.for_new(request.memory_bytes())?;
        let (tiers, notes) = request.tiers_for((&root, roots), &mount, &Memory::here())?;
        let name = match &request.job {
            Some(job) => job.clone(),
            None => free_name(roots, command),
        };
        let found = request.persist.as_ref().and_then(|persist| known(persist, &name));
        let map = mapping(request, &name, found.as_ref())?;
        // A job that failed stays so, whatever became of its store.
        let failed = found.and_then(|found| found.pending).filter(|_| !request.fresh);
        let job = Job {
            format: JOB_FORMAT,
            job: name,
            store: random_hex(),
            mount,
            persist: request.persist.clone(),
            map,
            persist_id,
            shared: request.shared,
            launch: rank::seat().map(|seat| seat.launch),
            scope: request.scope.unwrap_or(Scope::Node),
            tiers,
            meta: request.meta_spec(),
            promote: request.promote,
            runs: u64::from(request.runs_program),
            pending: failed.or_else(|| Job::executable(command)),
            recovered: None,
            metrics: request.metrics.clone(),
            log: request.log.unwrap_or_default(),
            checkpoint: request.checkpoint.clone(),
            drain: request.drain.policy(),
            space: request.space.clone(),
            archive: request.archive.clone(),
            created: seconds_since_epoch(),
            command: command.to_vec(),
        };
        let notes = note.into_iter().chain(notes).collect();
        Ok(Description { root, job, goes_on: false, notes })
    }

    /// Describes a store that replaces the one of `job` in `directory`, which is about to be
    /// removed.
    fn of_again(directory: &Path, job: &Job, command: &[String]) -> Description {
        let root = directory.ancestors().nth(2).unwrap_or(directory).to_path_buf();
        let job = Job {
            store: random_hex(),
            launch: rank::seat().map(|seat| seat.launch),
            created: seconds_since_epoch(),
            command: command.to_vec(),
            ..job.clone()
        };
        Description { root, job, goes_on: true, notes: Vec::new() }
    }
}

/// Checks that the directory that a store drains to is still the same one.
fn check_persist(persist: &Path, job: &Job) -> Result<()> {
    Ledger::check(persist, job).map_err(|error| match error {
        error @ cairn_agent::Error::AnotherDirectory { .. } => Error::Setting(SettingError::Persist {
            path: persist.to_path_buf(),
            problem: format!("cannot be used: {error}"),
            advice: "mount it again, or choose the present one with: cairn drain JOB --persist DIR",
        }),
        other => other.into(),
    })
}

/// Returns what a tier is made of.
fn place(store: &Store, tier: &TierSpec, is_kept: bool) -> Result<TierPlace> {
    let (Some(kind), Some(path)) = (tier.device.medium(), &tier.path) else {
        return Ok(TierPlace::Ram);
    };
    let place = TierPlace::new(kind, path)
        .map_err(|errno| store.directory().error("name a tier of", c"", errno))?;
    match is_kept {
        true => place.as_kept().map_err(tier::refuse_kept(path)),
        false => Ok(place),
    }
}

fn too_small(tier: &TierSpec, least_bytes: u64) -> Error {
    let least = least_bytes.next_multiple_of(u64::from(HUGEBLOCK_BYTES_DEFAULT));
    Error::Tier(TierError::MetaTooSmall { given: tier::shown(tier), least: size::exact(least) })
}

/// Returns the metadata tier and the data tiers that the superblock in `media` describes. The
/// superblock has no paths; they come from `job`.
fn kept_tiers(
    job: &Job,
    media: &TierSpec,
    superblock: &Superblock,
) -> (Option<TierSpec>, Vec<TierSpec>) {
    let hugeblock_bytes = u64::from(superblock.geometry.hugeblock_bytes);
    let first = TierSpec { bytes: superblock.bytes, ..media.clone() };
    let is_alone = superblock.geometry.tier_blocks[0] == 0;
    let mut given = job.tiers.iter().skip(usize::from(!is_alone));
    let further = superblock.geometry.tier_blocks[1..].iter().zip(superblock.further);
    let further = further.filter(|(blocks, _)| **blocks > 0).map(|(&blocks, identity)| {
        let bytes = u64::from(blocks) * hugeblock_bytes;
        let device = if identity.is_some() { DeviceKind::File } else { DeviceKind::Ram };
        match given.next().filter(|tier| tier.path.is_some() == identity.is_some()) {
            Some(tier) => TierSpec { bytes, ..tier.clone() },
            None => TierSpec { device, path: None, bytes },
        }
    });
    match is_alone {
        true => (Some(first), further.collect()),
        false => (None, std::iter::once(first).chain(further).collect()),
    }
}

/// Returns a name for a job that no store has: part of the command and random letters.
fn free_name(roots: &Roots, command: &[String]) -> String {
    let program = command.first().map(String::as_str).unwrap_or_default();
    let base = program.rsplit('/').next().unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '_';
    let stem: String = base.chars().filter(plain).take(NAME_STEM_MAX).collect();
    let stem = stem.trim_start_matches(['-', '_']);
    let stem = if stem.is_empty() { "job" } else { stem };
    loop {
        let letter = |byte: u8| NAME_LETTERS[usize::from(byte) % NAME_LETTERS.len()] as char;
        let suffix: String = random_bytes::<4>().into_iter().map(letter).collect();
        let name = format!("{stem}-{suffix}");
        if roots.find(&name).is_none() {
            return name;
        }
    }
}

/// Returns the manifest of `job` in a persist directory. An unreadable directory is ignored here,
/// because the agent reports it.
fn known(persist: &Path, job: &str) -> Option<Manifest> {
    let mut destination = Destination::open(persist, job).ok()?;
    manifest_file::load(&mut destination, job).ok().flatten()
}

/// Returns the mapping of a new store of `job`: the requested one, else the one with which an
/// earlier store drained to the same directory, whose manifest is `found`. Errors: both exist and
/// differ.
fn mapping(request: &Request, job: &str, found: Option<&Manifest>) -> Result<Mapping> {
    let found = found.filter(|found| !found.files.is_empty()).map(|found| found.map.clone());
    match (&request.map, found) {
        (Some(given), Some(found)) if *given != found => {
            Err(Error::Setting(SettingError::MappedOtherwise {
                given: shown_mapping(given),
                stored: shown_mapping(&found),
                job: job.to_string(),
            }))
        }
        (given, found) => Ok(given.clone().or(found).unwrap_or_default()),
    }
}

fn seconds_since_epoch() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
