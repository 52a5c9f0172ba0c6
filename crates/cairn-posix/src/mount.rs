//! The process's one mount: attached on first use, shared by all its threads.
//!
//! Invariant: once attached, the mount stays for the life of the process, or until the program
//! gives it up. A forked child keeps the mapping and takes a slot of its own. After a caught panic
//! every call of ours fails with `EIO`: the application goes on, but our state is not trusted any
//! more.
//!
//! Does not decide which calls are ours; `path.rs` and `table.rs` do.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_core::{
    Caller, Credentials, HandleId, InodeId, MEDIA_BLOCK_BYTES, Microfs, SlotId, StaleBlock,
    Timestamp,
};
use cairn_device::media::media_file::Allocation;
use cairn_device::memory::huge;
use cairn_device::store::namespace::{self, Creation, open_namespace};
use cairn_device::{Device, Namespace, Store, StoreError, TierPlace};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::{process, sys};

use crate::error::{Errno, Result};
use crate::kernel::configuration::{self, Configuration, Scope};
use crate::kernel::latch::Latch;
use crate::task::{fs_context, internal_floor, mappings, store_inodes, table};

/// Name of the namespace that all processes of the node share.
const NODE: &str = "node";
/// Smallest share of a tier for a rank's own namespace, in hugeblocks.
const RANK_BLOCKS_MIN: u32 = 64;

static MOUNT: AtomicPtr<Mount> = AtomicPtr::new(core::ptr::null_mut());
/// Mount that the program has given up and may attach again.
static RETIRED: AtomicPtr<Mount> = AtomicPtr::new(core::ptr::null_mut());
static POISONED: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Whether this process serves files to others and is no program of the job.
static SERVICE: AtomicBool = AtomicBool::new(false);
/// Thread that is ending the process; 0 if none is.
static ENDER: AtomicU32 = AtomicU32::new(0);
static ATTACHING: Latch = Latch::new();

/// Whose credentials a permission check uses: those of a process may differ from its user's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// The effective ones, with which calls are made.
    Effective,
    /// Those of the real user, for `access(2)`.
    Real,
}

/// An attached namespace and this process's state in it.
pub struct Mount {
    namespace: Namespace,
    /// Process generation for which `slot` is valid; differs in a forked child.
    generation: AtomicU64,
    slot: AtomicU32,
    /// Process that owns the slot. A process that shares its memory uses the same slot.
    pid: AtomicU32,
    /// Set in a forked child until its first call of ours: `slot` is the one its parent made for
    /// it.
    prepared: AtomicBool,
    /// User (high half) and group of calls: the effective ones, and then the real ones.
    credentials: AtomicU64,
    real_credentials: AtomicU64,
    /// Supplementary groups; null for none. Never freed.
    groups: AtomicPtr<Vec<u32>>,
    /// `RLIMIT_FSIZE` in bytes; `u64::MAX` if there is no limit.
    file_size_limit: AtomicU64,
    /// `st_dev` of our files.
    device_number: u64,
}

/// Returns the mount if this process has attached it.
#[inline]
pub fn attached() -> Option<&'static Mount> {
    // SAFETY: a non-null MOUNT came from `Box::leak` and is never freed.
    unsafe { MOUNT.load(Ordering::Acquire).as_ref() }
}

/// Returns the mount and attaches it if necessary. Errors: `EIO` after a caught panic, `ENODEV`
/// without configuration or store; those of opening the store.
#[inline]
pub fn current() -> Result<&'static Mount> {
    match attached() {
        Some(mount)
            if mount.generation.load(Ordering::Relaxed) == process::generation()
                && !POISONED.load(Ordering::Relaxed) =>
        {
            Ok(mount)
        }
        _ => attach(),
    }
}

/// Returns the mount, if it is attached, for releasing what this process holds. A forked child that
/// only releases need not register itself.
pub(crate) fn holder() -> Option<&'static Mount> {
    let mount = attached()?;
    if mount.current_slot().is_some() { Some(mount) } else { current().ok() }
}

/// Makes every later call of ours fail, because a panic was caught and so a bug has shown.
pub fn poison() {
    POISONED.store(true, Ordering::Relaxed);
}

/// Whether [`poison`] was called.
pub fn is_poisoned() -> bool {
    POISONED.load(Ordering::Relaxed)
}

/// Marks the process as ended in the store, so that a late call does not take a slot again.
pub(crate) fn set_ended() {
    ENDED.store(true, Ordering::Relaxed);
}

/// Records whether this process ends without having finished what it was writing.
pub(crate) fn set_interrupted(is_interrupted: bool) {
    INTERRUPTED.store(is_interrupted, Ordering::Relaxed);
}

/// Whether files that are closed from now on count as left by a dead process.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Makes this process attach as one that serves files to others.
pub(crate) fn set_service() {
    SERVICE.store(true, Ordering::Relaxed);
}

/// Records that the calling thread is about to end the process.
pub(crate) fn begin_end() {
    ENDER.store(sys::gettid(), Ordering::Relaxed);
}

/// Waits, in a thread whose call has failed, while another thread ends the process. The failed call
/// must not report its error then: on a disk, the call would go on until the kernel stops the
/// thread. Returns if nothing is ending, or if the end does not come.
#[cold]
pub fn wait_if_ending() {
    /// Longest wait. An end takes milliseconds; longer only if it waits for something this thread
    /// has.
    const PATIENCE_MS: u32 = 2000;
    const PAUSE: core::time::Duration = core::time::Duration::from_millis(10);
    let ender = ENDER.load(Ordering::Relaxed);
    if ender == 0 || ender == sys::gettid() {
        return;
    }
    let begun = sys::monotonic_ms();
    while sys::monotonic_ms().wrapping_sub(begun) < PATIENCE_MS && !is_in_child(ender) {
        let _ = sys::nanosleep(PAUSE);
    }
}

/// Whether this is a child of the process that thread `ender` was ending.
fn is_in_child(ender: u32) -> bool {
    sys::tgkill(sys::getpid(), ender, 0).is_err()
}

#[cold]
fn attach() -> Result<&'static Mount> {
    if is_poisoned() || ENDED.load(Ordering::Relaxed) {
        return Err(Errno(libc::EIO));
    }
    let _held = ATTACHING.hold()?;
    if let Some(mount) = attached() {
        mount.adopt()?;
        return Ok(mount);
    }
    let configuration = configuration::get().ok_or(Errno(libc::ENODEV))?;
    table::prepare()?;
    // SAFETY: as in `attached`.
    if let Some(mount) = unsafe { RETIRED.load(Ordering::Acquire).as_ref() } {
        return mount.resume(configuration);
    }
    let mount = Box::new(Mount::open(configuration)?);
    let identity = process::identity()?;
    let attached = mount.with_room(|| match SERVICE.load(Ordering::Relaxed) {
        true => mount.fs().attach_service(identity),
        false => mount.fs().attach(identity),
    })?;
    mount.slot.store(attached.slot.0, Ordering::Relaxed);
    mount.pid.store(identity.pid, Ordering::Relaxed);
    mount.generation.store(process::generation(), Ordering::Relaxed);
    let mount: &'static Mount = Box::leak(mount);
    mount.internal_descriptors(&mut internal_floor::note);
    if attached.known {
        mount.recognise_descriptors()?;
    }
    MOUNT.store(core::ptr::from_ref(mount).cast_mut(), Ordering::Release);
    Ok(mount)
}

/// Whether the process had a mount that it gave up.
pub(crate) fn is_retired() -> bool {
    !RETIRED.load(Ordering::Relaxed).is_null()
}

/// Gives the mount up. Precondition: the process holds nothing in it. Threads that still use the
/// reference see the mount as it was.
pub(crate) fn retire() -> Result<()> {
    let _held = ATTACHING.hold()?;
    let Some(mount) = attached() else { return Ok(()) };
    if let Some(slot) = mount.current_slot() {
        mount.fs().detach(slot, now())?;
    }
    mount.abandon_slot();
    RETIRED.store(core::ptr::from_ref(mount).cast_mut(), Ordering::Release);
    MOUNT.store(core::ptr::null_mut(), Ordering::Release);
    Ok(())
}

impl Mount {
    /// Attaches a mount again that was given up. Errors: `EXDEV` if another store is in its place.
    fn resume(&'static self, configuration: &Configuration) -> Result<&'static Mount> {
        let ours = sys::fstat(self.store_directory())?;
        let there = sys::fstatat(libc::AT_FDCWD, configuration.store_path(), 0)
            .map_err(|_| Errno(libc::ENODEV))?;
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) {
            return Err(Errno(libc::EXDEV));
        }
        self.adopt()?;
        MOUNT.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
        Ok(self)
    }

    fn open(configuration: &Configuration) -> Result<Mount> {
        let path = Path::new(OsStr::from_bytes(configuration.store()));
        // A missing store must differ from a missing file, which is `ENOENT`.
        let failed = |error: StoreError| match error.errno {
            libc::ENOENT => Errno(libc::ENODEV),
            errno => Errno(errno),
        };
        let store = Store::open(path).map_err(failed)?;
        let (namespace, number) = match configuration.scope() {
            Scope::Node => (open_namespace(&store, NODE).map_err(failed)?, 0),
            Scope::Rank { rank, local_size } => {
                (rank_namespace(&store, rank, local_size).map_err(failed)?, rank + 1)
            }
        };
        let mount = Mount {
            namespace,
            generation: AtomicU64::new(0),
            slot: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            prepared: AtomicBool::new(false),
            credentials: AtomicU64::new(0),
            real_credentials: AtomicU64::new(0),
            groups: AtomicPtr::new(core::ptr::null_mut()),
            file_size_limit: AtomicU64::new(u64::MAX),
            device_number: libc::makedev(DEVICE_MAJOR, number),
        };
        mount.refresh_credentials();
        mount.refresh_limits();
        Ok(mount)
    }

    /// The microfs of the namespace.
    #[inline]
    pub fn fs(&self) -> &Microfs {
        &self.namespace.fs
    }

    /// Returns the namespace that is mounted.
    #[inline]
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the device of tier `tier`. Errors: `EIO` if a damaged extent names a missing tier.
    #[inline]
    pub fn tier(&self, tier: u8) -> Result<&dyn Device> {
        Ok(self.namespace.tier(tier)?)
    }

    /// Whether every tier with data is in memory, or is written as if it were.
    pub(crate) fn is_in_memory(&self) -> bool {
        let in_memory = |device: &dyn Device| device.mappable().is_some_and(|at| at.in_memory);
        let mut tiers = self.namespace.tiers.iter().filter(|device| device.bytes() > 0);
        tiers.all(|device| in_memory(device.as_ref()))
    }

    /// Makes stores to mapped files durable on tiers whose flush with the metadata leaves them out,
    /// or may leave them out: no record names stores that were written back after the last mapping
    /// ended.
    pub(crate) fn flush_mapped_stores(&self) -> Result<()> {
        let tiers = self.namespace.tiers.iter();
        let mut left_out =
            tiers.filter(|tier| tier.is_synchronous() == Some(true) || tier.shows_copies());
        Ok(left_out.try_for_each(|tier| tier.flush())?)
    }

    /// As `Namespace::shows_copies`.
    pub(crate) fn shows_copies(&self) -> bool {
        self.namespace.shows_copies()
    }

    /// As `Namespace::write_back`.
    pub(crate) fn write_back(&self, inode: InodeId, range: Range<u64>) -> Result<()> {
        Ok(self.namespace.write_back(inode, range)?)
    }

    /// Zeroes the bytes past the end of the file, so that it can grow over them.
    pub(crate) fn settle(&self, inode: InodeId) -> Result<()> {
        Ok(self.namespace.settle(&self.caller(), inode)?)
    }

    /// Returns the checksum that a stale block should have.
    pub(crate) fn block_checksum(&self, block: &StaleBlock) -> Result<u32> {
        Ok(self.namespace.block_checksum(block)?)
    }

    /// Returns a new close-on-exec descriptor of the socket inode that stands for `handle`, and the
    /// inode's number.
    pub(crate) fn placeholder(&self, handle: HandleId) -> Result<(i32, u64)> {
        Ok(self.namespace.placeholder(handle.number())?)
    }

    /// As `Namespace::launch`.
    pub(crate) fn launch(&self, handle: HandleId) -> Result<Descriptor> {
        Ok(self.namespace.launch(handle)?)
    }

    /// As `Namespace::land`; also frees the blocks that this leaves behind.
    pub(crate) fn land(&self, handle: HandleId) -> Result<()> {
        self.namespace.land(handle)?;
        self.reclaim();
        Ok(())
    }

    /// Returns a new descriptor of a stand-in directory, to become the kernel's current directory,
    /// and its identity.
    pub(crate) fn stand_in(&self) -> Result<(i32, u64)> {
        Ok(self.namespace.stand_in()?)
    }

    /// Calls `visit` with each descriptor that the store itself keeps open.
    pub(crate) fn internal_descriptors(&self, visit: &mut dyn FnMut(i32)) {
        self.namespace.descriptors(visit);
    }

    /// Name of the namespace.
    pub(crate) fn name(&self) -> &str {
        self.namespace.name()
    }

    /// Descriptor of the store's directory.
    pub(crate) fn store_directory(&self) -> i32 {
        self.namespace.directory().raw()
    }

    /// As `Namespace::admit_others`.
    pub(crate) fn admit_others(&self) {
        self.namespace.admit_others();
    }

    /// Descriptor of the store's directory of placeholders.
    pub(crate) fn handles_directory(&self) -> i32 {
        self.namespace.handles()
    }

    /// `st_dev` of files of ours.
    pub fn device_number(&self) -> u64 {
        self.device_number
    }

    /// This process's slot.
    #[inline]
    pub fn slot(&self) -> SlotId {
        SlotId(self.slot.load(Ordering::Relaxed))
    }

    /// Returns this process as a caller, with the present time.
    #[inline]
    pub fn caller(&self) -> Caller {
        self.caller_with(Rights::Effective)
    }

    /// As [`Mount::caller`], with these rights.
    #[inline]
    pub(crate) fn caller_with(&self, rights: Rights) -> Caller {
        let credentials = match rights {
            Rights::Effective => self.credentials.load(Ordering::Relaxed),
            Rights::Real => self.real_credentials.load(Ordering::Relaxed),
        };
        Caller {
            slot: self.slot(),
            credentials: Credentials { uid: (credentials >> 32) as u32, gid: credentials as u32 },
            groups: self.groups(),
            now: now(),
        }
    }

    #[inline]
    fn groups(&self) -> &'static [u32] {
        let groups = self.groups.load(Ordering::Acquire);
        // SAFETY: null, or leaked by `refresh_credentials`.
        unsafe { groups.as_ref() }.map_or(&[], Vec::as_slice)
    }

    /// Reads the credentials from the kernel again. To be called after a call that changes them.
    pub fn refresh_credentials(&self) {
        let pack = |uid, gid| u64::from(uid) << 32 | u64::from(gid);
        self.credentials.store(pack(sys::geteuid(), sys::getegid()), Ordering::Relaxed);
        self.real_credentials.store(pack(sys::getuid(), sys::getgid()), Ordering::Relaxed);
        let groups = sys::getgroups();
        if groups != self.groups() {
            // Other threads may still read the old list, so it is not freed.
            self.groups.store(Box::into_raw(Box::new(groups)), Ordering::Release);
        }
    }

    /// Reads the limits of this process from the kernel again. To be called after a call that
    /// changes them.
    pub fn refresh_limits(&self) {
        let limit = sys::soft_limit(libc::RLIMIT_FSIZE).unwrap_or(u64::MAX);
        self.file_size_limit.store(limit, Ordering::Relaxed);
    }

    /// Largest file this process may create, in bytes.
    #[inline]
    pub(crate) fn file_size_limit(&self) -> u64 {
        self.file_size_limit.load(Ordering::Relaxed)
    }

    /// Sets up the slot that the parent made for this forked child. The child registers itself on
    /// its first call of ours, because most children execute another program at once.
    pub(crate) fn inherit(&self, slot: SlotId) {
        self.slot.store(slot.0, Ordering::Relaxed);
        self.pid.store(sys::getpid(), Ordering::Relaxed);
        self.prepared.store(true, Ordering::Relaxed);
    }

    /// Returns the slot that holds this process's references, even if it has not registered itself
    /// yet.
    pub(crate) fn current_slot(&self) -> Option<SlotId> {
        let known = self.generation.load(Ordering::Relaxed) == process::generation();
        (known || self.prepared.load(Ordering::Relaxed)).then(|| self.slot())
    }

    /// Takes over the slot made for a forked child. If its creation was not seen, attaches a new
    /// slot for what it inherited.
    fn adopt(&self) -> Result<()> {
        if self.generation.load(Ordering::Relaxed) == process::generation() {
            return Ok(());
        }
        let identity = process::identity()?;
        let prepared = self.prepared.swap(false, Ordering::Relaxed);
        if !prepared || self.fs().spawn_child(self.slot(), identity).is_err() {
            let attached = self.with_room(|| self.fs().attach(identity))?;
            self.retain_all(attached.slot, |_| true);
            mappings::retain(self.fs(), attached.slot);
            fs_context::retain(self.fs(), attached.slot);
            self.slot.store(attached.slot.0, Ordering::Relaxed);
        }
        self.pid.store(identity.pid, Ordering::Relaxed);
        self.generation.store(process::generation(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the slot if it ends with this process; none in a process that shares the memory and
    /// the slot of another.
    pub(crate) fn own_slot(&self) -> Option<SlotId> {
        self.current_slot().filter(|_| self.pid.load(Ordering::Relaxed) == sys::getpid())
    }

    /// Gives up this process's slot; the process takes a new one if it goes on.
    pub(crate) fn abandon_slot(&self) {
        self.prepared.store(false, Ordering::Relaxed);
        self.generation.store(0, Ordering::Relaxed);
    }

    /// Retains the handles of this process for which `wanted` returns true. Descriptors of handles
    /// that are gone leave the table.
    pub(crate) fn retain_all(&self, slot: SlotId, wanted: impl Fn(HandleId) -> bool) {
        for (descriptor, handle) in table::all() {
            if wanted(handle) && self.fs().retain(slot, handle).is_err() {
                drop(table::forget(descriptor));
            }
        }
    }

    /// Runs `act`, which needs a free process slot. If there is none, reaps dead processes and runs
    /// it again.
    pub(crate) fn with_room<T>(&self, act: impl Fn() -> cairn_core::Result<T>) -> Result<T> {
        match act() {
            Err(cairn_core::Error::TooManyProcesses) => {}
            result => return Ok(result?),
        }
        self.namespace.reap()?;
        Ok(act()?)
    }

    /// Releases what dead processes held. Returns false if that failed.
    pub(crate) fn reap(&self) -> bool {
        let reaped = self.namespace.reap();
        self.reclaim();
        reaped.is_ok()
    }

    /// As `Namespace::reap_gone`. If it fails, the agent does the work later.
    pub fn reap_gone(&self) {
        let _ = self.namespace.reap_gone();
    }

    /// Packs small files into shared blocks, as `Namespace::pack`. Returns false if that made no
    /// room.
    pub(crate) fn pack(&self) -> bool {
        self.namespace.pack(&self.caller()).unwrap_or(false)
    }

    /// As `Namespace::unpack`.
    pub(crate) fn unpack(&self, inode: InodeId) -> Result<()> {
        Ok(self.retry_while_busy(|| self.namespace.unpack(&self.caller(), inode))?)
    }

    /// As `Namespace::retry_while_busy`.
    pub(crate) fn retry_while_busy<T>(
        &self,
        act: impl Fn() -> cairn_core::Result<T>,
    ) -> cairn_core::Result<T> {
        self.namespace.retry_while_busy(act)
    }

    /// After an exec: enters the descriptors that survived it in the table and gives up the handles
    /// of those that did not.
    fn recognise_descriptors(&self) -> Result<()> {
        let mut outcome = Ok(());
        let mut others = Vec::new();
        store_inodes::for_each(|descriptor, stat| {
            if store_inodes::is_placeholder(stat.st_mode, stat.st_dev) {
                outcome = self.recognise(descriptor, stat.st_ino);
            } else if store_inodes::is_regular(stat.st_mode, stat.st_dev) {
                others.push(descriptor);
            }
            outcome.is_ok()
        })?;
        outcome?;
        store_inodes::note_inherited_files(others);
        let held = |handle| table::holds(handle) || fs_context::holds(handle);
        self.fs().retain_only(self.slot(), &held, now())?;
        self.fs().mark_exec(self.slot(), false)?;
        Ok(())
    }

    /// Enters an inherited descriptor, a placeholder with this inode, if its handle is open.
    fn recognise(&self, descriptor: i32, placeholder: u64) -> Result<()> {
        if let Some(handle) = self.fs().handle_by_placeholder(placeholder)? {
            let retain = || Ok(self.fs().retain(self.slot(), handle).map(drop)?);
            // A descriptor that cannot be entered does not keep the others out.
            drop(table::refer(handle, retain).and_then(|()| table::put(descriptor, handle)));
        }
        Ok(())
    }

    /// Returns the inode of a descriptor of ours that is used as a directory. Errors: `EBADF`,
    /// `ENOTDIR`.
    pub fn directory_of(&self, descriptor: i32) -> Result<InodeId> {
        let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
        let info = self.fs().handle(handle)?;
        match info.is_directory {
            true => Ok(info.inode),
            false => Err(Errno(libc::ENOTDIR)),
        }
    }

    /// Returns the inode behind a handle.
    pub fn inode_of(&self, handle: HandleId) -> Result<InodeId> {
        Ok(self.fs().handle(handle)?.inode)
    }

    /// Frees the blocks of deleted files.
    pub fn reclaim(&self) {
        let mut batches = 0;
        while self.fs().orphans() > 0 && batches < RECLAIM_BATCHES_MAX {
            // Blocks that cannot be freed at this time (pinned, or the lock is held by a stopped
            // tool) are freed by a later call.
            if !self.fs().reclaim(self.current_slot()).unwrap_or(false) {
                break;
            }
            batches += 1;
        }
    }
}

/// Opens the namespace of a rank. Creates it on first use as a share of the node's: its tiers are
/// divided by the number of ranks on the node.
fn rank_namespace(
    store: &Store,
    rank: u32,
    local_size: u32,
) -> core::result::Result<Namespace, StoreError> {
    let name = format!("rank-{rank}");
    match open_namespace(store, &name) {
        Err(error) if error.errno == libc::ENOENT => {}
        result => return result,
    }
    let node = open_namespace(store, NODE)?.fs;
    let mut geometry = node.geometry().clone();
    for blocks in &mut geometry.tier_blocks {
        *blocks = (*blocks / local_size).max(RANK_BLOCKS_MIN.min(*blocks));
    }
    let mut places = namespace::places(store, NODE)?;
    for place in &mut places {
        *place = place
            .beside(&name)
            .map_err(|errno| store.directory().error("name a tier of", c"", errno))?;
    }
    let mut creation = Creation {
        geometry,
        metadata_bytes: 0,
        places,
        want_huge_pages: store.directory().contains(huge::NAME),
        allocation: Allocation::AtOnce,
        may_overwrite: false,
    };
    if let Some(bytes) = node.media_bytes() {
        take_files(&mut creation, bytes / u64::from(local_size))?;
    }
    match namespace::create(store, &name, creation) {
        Err(error) if error.errno != libc::EEXIST => Err(error),
        _ => open_namespace(store, &name),
    }
}

/// Makes the rank's durable namespace from the files it had before the node's memory was lost, if
/// there are any. A namespace with metadata only gets at least `metadata_bytes` bytes for it.
fn take_files(
    creation: &mut Creation,
    metadata_bytes: u64,
) -> core::result::Result<(), StoreError> {
    if matches!(&creation.places[..], [TierPlace::Medium { path, .. }, ..] if path.exists()) {
        let kept = creation.places.iter().map(TierPlace::as_kept);
        creation.places = kept.collect::<core::result::Result<_, _>>()?;
    }
    if creation.geometry.tier_blocks[0] == 0 {
        let bytes = metadata_bytes.max(creation.least_metadata_bytes());
        creation.metadata_bytes = bytes.next_multiple_of(MEDIA_BLOCK_BYTES as u64);
    }
    Ok(())
}

/// Major number of `st_dev`; Linux assigns it to no device.
const DEVICE_MAJOR: u32 = 0xca1;
/// Most batches of blocks that one call frees, so that a call stays bounded.
const RECLAIM_BATCHES_MAX: usize = 1 << 16;

/// Returns the time with the resolution of the kernel's tick, as file systems use it.
pub fn now() -> Timestamp {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes one timespec; the vDSO serves it, and it is never hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    Timestamp::from_parts(time.tv_sec, time.tv_nsec)
}
