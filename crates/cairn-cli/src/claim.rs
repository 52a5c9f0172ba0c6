//! Having a store to oneself: making it, resuming it, removing it.
//!
//! Must stay true: a store is used by one `cairn run` at a time (`run.lock`); what a failed attempt
//! made is removed again; a store is removed only after its agent has ended, so nobody drains what
//! is going away.

use crate::error::{Error, Result};
use crate::request::{Request, address_space_bytes, fit_segment};
use crate::store::{OpenStore, Roots, refuse};
use crate::tier;
use cairn_agent::client::Client;
use cairn_agent::daemon;
use cairn_agent::job::{AGENT_LOCK, JOB_FILE, JOB_FORMAT, Job, RUN_LOCK, Scope, TierSpec};
use cairn_core::{Geometry, HUGEBLOCK_BYTES_DEFAULT, TIERS_MAX};
use cairn_device::media_file::Allocation;
use cairn_device::namespace::{self, Creation};
use cairn_device::{MediumKind, Store, StoreError, TierPlace};
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The namespace that every store has.
const NODE: &str = "node";
/// How long the lock of a run is waited for: others hold it for an instant to see whether it is
/// held.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);
/// How long an agent may take to end.
const AGENT_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Letters of the random part of a name: none that look alike.
const NAME_LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
/// Length of the part of a name that comes from the command.
const NAME_STEM_MAX: usize = 16;

/// A store that this process has to itself.
pub struct Claim {
    /// The store.
    pub store: OpenStore,
    /// It was made by this process.
    pub is_new: bool,
    _lock: File,
}

impl Claim {
    /// The store of the job that `request` names if there is one, else a new one for `command`.
    pub fn obtain(roots: &Roots, request: &Request, command: &[String]) -> Result<Claim> {
        match request.job.as_deref().and_then(|job| roots.find(job)) {
            Some(directory) if directory.join(JOB_FILE).symlink_metadata().is_ok() => {
                Claim::resume(&directory, request)
            }
            _ => Claim::create(roots, request, command),
        }
    }

    fn resume(directory: &Path, request: &Request) -> Result<Claim> {
        let store = OpenStore::open(directory)?;
        let lock = lock(directory, &store.job.job)?;
        store.job.tiers.iter().try_for_each(tier::check_kept_device)?;
        request.check_against(&store.job)?;
        request.check_places(&store.job.mount, store.job.persist.as_deref())?;
        if let Some(persist) = &store.job.persist {
            crate::request::checked_persist(persist)?;
        }
        let claim = Claim { store, is_new: false, _lock: lock };
        let device_store = Store::open(directory).map_err(refuse)?;
        if device_store.namespaces().map_err(refuse)?.is_empty() {
            // Whoever made the description was killed before it made the namespace.
            claim.make_namespace(&device_store, request)?;
        }
        // Refuses a damaged or newer namespace before anything runs on it.
        claim.store.volumes()?;
        Ok(claim)
    }

    /// Makes a new store.
    pub fn create(roots: &Roots, request: &Request, command: &[String]) -> Result<Claim> {
        let mount = request.mount_or_default();
        request.check_places(&mount, request.persist.as_deref())?;
        let (root, note) = roots.for_new(request.memory_bytes())?;
        let tiers = request.tiers_for(&root, &mount)?;
        let name = match &request.job {
            Some(job) => job.clone(),
            None => free_name(roots, command),
        };
        let device_store = Store::create(&root, &name).map_err(refuse)?;
        let directory = device_store.path().to_path_buf();
        if !is_blank(&directory)? {
            return Err(Error::NotAStore { path: directory });
        }
        let lock = lock(&directory, &name)?;
        let job = Job {
            format: JOB_FORMAT,
            job: name,
            store: random_hex(),
            mount,
            persist: request.persist.clone(),
            scope: request.scope.unwrap_or(Scope::Node),
            tiers,
            created: seconds_since_epoch(),
            command: command.to_vec(),
        };
        let made = job.save(&directory).map_err(Error::from).and_then(|()| {
            let store = OpenStore::open(&directory)?;
            Ok(Claim { store, is_new: true, _lock: lock })
        });
        let made = made.and_then(|claim| {
            claim.make_namespace(&device_store, request)?;
            Ok(claim)
        });
        if let (Ok(_), Some(note)) = (&made, note) {
            eprintln!("cairn: {note}");
        }
        if made.is_err() {
            // There was nothing here before; the error that is reported is the first one.
            let _ = device_store.remove();
        }
        made
    }

    fn make_namespace(&self, store: &Store, request: &Request) -> Result<()> {
        let job = &self.store.job;
        let mut tier_blocks = [0; TIERS_MAX];
        for (blocks, tier) in tier_blocks.iter_mut().zip(&job.tiers) {
            let count = tier.bytes / u64::from(HUGEBLOCK_BYTES_DEFAULT);
            *blocks = u32::try_from(count).unwrap_or(u32::MAX);
        }
        let mut geometry = Geometry::new(job.mount.as_bytes(), tier_blocks, 0);
        geometry.durability = Some(request.durability).filter(|_| job.tiers[0].path.is_some());
        fit_segment(&mut geometry, address_space_bytes());
        let new_place = |tier: &TierSpec| match (tier.device.medium(), &tier.path) {
            (Some(kind), Some(path)) => TierPlace::new(kind, path)
                .map_err(|errno| store.directory().error("name a tier of", c"", errno).into()),
            _ => Ok(TierPlace::Ram),
        };
        let kept = self.kept_tier(request)?;
        let creation = Creation {
            geometry,
            places: match &kept {
                Some(place) => vec![place.clone()],
                None => job.tiers.iter().map(new_place).collect::<Result<_>>()?,
            },
            want_huge_pages: request.huge_pages,
            // Ranks have files of their own; nobody writes to the node's.
            allocation: match job.scope {
                Scope::Node => Allocation::AtOnce,
                Scope::Rank => Allocation::AsWritten,
            },
            may_overwrite: request.may_overwrite,
        };
        namespace::create(store, NODE, creation).map_err(|error| match &kept {
            Some(TierPlace::Medium { path, .. }) => refuse_tier(path)(error),
            _ => error.into(),
        })?;
        if kept.is_some() {
            let root = cairn_agent::FilePath::root();
            let mut inodes = 0;
            for volume in self.store.volumes()? {
                let usage = volume.fs().usage().map_err(volume.error("measure", &root))?;
                inodes += usage.inodes.saturating_sub(1);
            }
            eprintln!(
                "cairn: recovered {inodes} files and directories from {}",
                tier::shown(&job.tiers[0])
            );
        }
        Ok(())
    }

    /// The first tier, if it holds what an earlier store kept there. Errors: that had another prefix or size.
    fn kept_tier(&self, request: &Request) -> Result<Option<TierPlace>> {
        let job = &self.store.job;
        let [tier] = &job.tiers[..] else { return Ok(None) };
        let (Some(kind), Some(path)) = (tier.device.medium(), &tier.path) else { return Ok(None) };
        let (place, superblock) = match TierPlace::existing(kind, path) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Ok(None),
            // Nothing can be made of it.
            Err(StoreError { refusal: Some(cairn_core::Error::Corrupt { .. }), .. })
                if kind == MediumKind::Block && request.may_overwrite =>
            {
                return Ok(None);
            }
            Err(error) => return Err(refuse_tier(path)(error)),
        };
        let mount = String::from_utf8_lossy(&superblock.geometry.mount).into_owned();
        let kept = TierSpec { bytes: superblock.bytes, ..tier.clone() };
        for (option, given, stored) in [
            ("--mount", job.mount.clone(), mount),
            ("--tier", tier::shown(tier), tier::shown(&kept)),
        ] {
            if given != stored {
                return Err(Error::Contradiction { option, given, stored, job: job.job.clone() });
            }
        }
        Ok(Some(place))
    }

    /// Ends the agent and removes the store with everything in it.
    pub fn remove(self) -> Result<()> {
        let directory = self.store.directory();
        let started = Instant::now();
        while daemon::is_locked(directory, AGENT_LOCK)? && started.elapsed() < AGENT_PATIENCE {
            if let Some(mut agent) = Client::connect(directory) {
                // One that hangs up is ending already, which is what is wanted.
                let _ = agent.stop();
            }
            thread::sleep(LOOK_EVERY);
        }
        // An agent that does not end finds its store gone and gives up.
        Store::open(directory)?.remove()?;
        Ok(())
    }
}

/// Pairs with `map_err`: the tier at `path`, which an earlier store has left, cannot be used.
fn refuse_tier(path: &Path) -> impl Fn(StoreError) -> Error {
    move |error| match error.refusal {
        Some(cairn_core::Error::Corrupt { what }) => Error::TierFile {
            path: path.to_path_buf(),
            problem: format!("is damaged: {what}"),
            advice: "nothing was changed; see cairn fsck",
        },
        _ => refuse(error),
    }
}

/// Whether a store directory holds nothing but what every new one holds.
fn is_blank(directory: &Path) -> Result<bool> {
    const OF_A_NEW_STORE: [&str; 4] = ["handles", "void", RUN_LOCK, ".job.json.new"];
    let listed = || -> std::io::Result<bool> {
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            if !OF_A_NEW_STORE.iter().any(|known| name == *known) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    listed().map_err(Error::file("list", directory))
}

/// Takes the run lock of a store.
pub fn lock(directory: &Path, job: &str) -> Result<File> {
    let started = Instant::now();
    loop {
        match daemon::try_lock(directory, RUN_LOCK)? {
            Some(lock) => return Ok(lock),
            None if started.elapsed() > LOCK_PATIENCE => {
                return Err(Error::Running { job: job.to_string() });
            }
            None => thread::sleep(LOOK_EVERY),
        }
    }
}

/// Takes a store that exists to oneself.
pub fn claim_existing(store: OpenStore) -> Result<Claim> {
    let lock = lock(store.directory(), &store.job.job)?;
    Ok(Claim { store, is_new: false, _lock: lock })
}

/// A name made from the command and a few random letters that no store has.
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

fn random_hex() -> String {
    random_bytes::<8>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled.is_err() {
        // Names need not be secret, only different.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mixed = now.as_nanos() ^ u128::from(std::process::id()) << 64;
        for (byte, mixed) in bytes.iter_mut().zip(mixed.to_le_bytes()) {
            *byte = mixed;
        }
    }
    bytes
}

fn seconds_since_epoch() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
