//! A namespace of a store. Creates and opens its segments, and the kernel objects that stand for
//! its open files and directories.
//!
//! Must stay true: a namespace exists when its meta segment exists. The meta segment is made last,
//! when every tier is there. Placeholders and stand-ins are `O_PATH` descriptors: no call can read
//! or write through them.
//!
//! Does not plan, and does not know file names inside the namespace.

pub(crate) mod removal;

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use cairn_core::{
    Credentials, Durability, Error, FurtherTier, Geometry, ImageMemory, Media, MediaOptions,
    Microfs, Placement, Superblock, TIERS_MAX,
};
use cairn_platform::checksum;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::short_path::ShortPath;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::device::Device;
use crate::directory::{Directory, StoreError, StoreResult};
use crate::media::file::FileTier;
use crate::media::label::{self, Identity};
use crate::media::media_file::{Allocation, MediaFile};
use crate::media::medium::MediumKind;
use crate::media::medium::known::Known;
use crate::media::transit::Transit;
use crate::memory::huge::{self, HugePages};
use crate::memory::numa;
use crate::memory::ram::RamDevice;
use crate::memory::segment::{self, MetaSegment, PrivateSegment};
use crate::store::tiers::{self, TierPlace};
use crate::store::{self, HANDLES, Store};

/// Number of attempts to find a free name for a stand-in; other processes choose names, too.
const STAND_IN_TRIES: u32 = 16;
const FORGOTTEN: &str = "the machine that it is on was started again: what was written there and not made durable may be gone";

/// An open namespace.
pub struct Namespace {
    /// The core's engine over the meta segment.
    pub fs: Microfs,
    /// Its tiers, indexed by the core's tier number.
    pub tiers: Vec<Arc<dyn Device>>,
    name: String,
    directory: Directory,
    /// Directory of placeholders. A process that has it open can use it whatever rights it has
    /// left.
    handles: Descriptor,
    meta_descriptors: [Option<i32>; 2],
}

/// Parameters of a new namespace.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Shape of the namespace. `create` sets `zero_block_checksum` and the tier in memory. With
    /// `durability` the first tier is a file or device that holds all metadata, and its size
    /// determines the rest.
    pub geometry: Geometry,
    /// Size of that file or device if it holds metadata alone; the first tier then has no
    /// hugeblocks. Else 0.
    pub metadata_bytes: u64,
    /// Places of its tiers, as many as the geometry has.
    pub places: Vec<TierPlace>,
    /// Whether to ask for huge pages in memory.
    pub want_huge_pages: bool,
    /// When the space of files is allocated.
    pub allocation: Allocation,
    /// Whether the content of a block device may be overwritten, unless a store uses it.
    pub may_overwrite: bool,
}

/// Creates the namespace `name` of `geometry` in `store`, with one tier, in memory. Result and
/// errors as `create`.
pub fn create_namespace(
    store: &Store,
    name: &str,
    geometry: Geometry,
    want_huge_pages: bool,
) -> StoreResult<HugePages> {
    let places = vec![TierPlace::Ram];
    let allocation = Allocation::AtOnce;
    let (metadata_bytes, may_overwrite) = (0, false);
    create(
        store,
        name,
        Creation { geometry, metadata_bytes, places, want_huge_pages, allocation, may_overwrite },
    )
}

/// Creates the namespace `name` in `store`. Returns whether its memory has huge pages. A durable
/// namespace whose first file or device already holds one is recovered from that instead.
///
/// Errors: it exists, or something else is where a file is to be made or on a device (`EEXIST`);
/// places and geometry do not match, or more than one tier is in memory (`EINVAL`); no space; a
/// file is in use (`EWOULDBLOCK`), missing (`ENOENT`) or damaged.
pub fn create(store: &Store, name: &str, mut creation: Creation) -> StoreResult<HugePages> {
    let directory = store.directory();
    let names = Names::new(directory, name)?;
    if !fits(&creation.geometry, &creation.places) {
        return Err(directory
            .error("create namespace", &names.meta, Errno(libc::EINVAL))
            .advise("at most one tier can be in memory; a durable store needs a file first"));
    }
    creation.geometry.placement = creation.placement();
    let _exclusive = directory.exclusive()?;
    if directory.contains(&names.meta) {
        return Err(directory.error("create namespace", &names.meta, Errno(libc::EEXIST)));
    }
    remove_leftovers(directory, &names)?;
    if creation.geometry.durability.is_some() {
        return create_durable(directory, &names, &creation);
    }
    let made = (|| {
        tiers::write(directory, &names.tiers, &creation.places)?;
        let huge_pages = create_own(directory, &names, &creation.geometry, &creation)?;
        create_media(&creation)?;
        create_meta(directory, &names, creation.geometry)?;
        Ok(huge_pages)
    })();
    if made.is_err() {
        // The first error is the one to report.
        let _ = remove_tiers(directory, &names, false);
    }
    made
}

/// Makes a namespace on files or devices, or recovers it from what they hold. In the second case
/// they stay even if this fails.
fn create_durable(
    directory: &Directory,
    names: &Names,
    creation: &Creation,
) -> StoreResult<HugePages> {
    let Some(place @ TierPlace::Medium { path, .. }) = creation.places.first() else {
        return Err(directory.error("create namespace", &names.meta, Errno(libc::EINVAL)));
    };
    let is_new = !place.is_made()?;
    tiers::write(directory, &names.tiers, &creation.places)?;
    let made = (|| {
        if is_new {
            create_media(creation)?;
        }
        let open = |place| open_alone(place, creation.allocation);
        let opened: Vec<_> = creation.places.iter().map(open).collect::<StoreResult<_>>()?;
        let files: Vec<&MediaFile> = opened.iter().flatten().collect();
        let file = files[0];
        let failed = |error: Error| StoreError::new("recover", path, error);
        for (opened, place) in opened.iter().zip(&creation.places) {
            if let (Some(file), TierPlace::Medium { kind: MediumKind::Remote, path, .. }) =
                (opened, place)
            {
                file.record_target_start(path)?;
            }
        }
        if is_new {
            format(file, creation).map_err(failed)?;
        }
        let superblock = Superblock::read(file, checksum::crc32c).map_err(failed)?;
        check_further(&superblock, creation, path)?;
        let placement = creation.geometry.placement;
        let geometry = Geometry { placement, ..superblock.geometry };
        let huge_pages = create_own(directory, names, &geometry, creation)?;
        MetaSegment::create(directory, &names.meta, geometry.segment_bytes(), |memory| {
            cairn_core::recover_placed(file, memory, checksum::crc32c, placement).map(drop)
        })?;
        let share = |file: &&MediaFile| file.share();
        let shared = files.iter().try_for_each(share);
        shared.map_err(|errno| StoreError::new("open tier", path, errno))?;
        Ok(huge_pages)
    })();
    if made.is_err() {
        // The first error is the one to report.
        let _ = match is_new {
            true => remove_tiers(directory, names, false),
            false => remove_own(directory, names),
        };
    }
    made
}

/// Opens the medium of a tier exclusively; `None` for a tier in memory. Allocates all the space
/// that it needs to be mapped.
fn open_alone(place: &TierPlace, allocation: Allocation) -> StoreResult<Option<MediaFile>> {
    let TierPlace::Medium { kind, path, identity } = place else { return Ok(None) };
    let file = MediaFile::open_alone(path)?;
    check_identity(path, &file, identity)?;
    if *kind == MediumKind::Dax && allocation == Allocation::AtOnce {
        let taken = file.take_missing_space();
        taken.map_err(|errno| StoreError::new("take the space of", path, errno))?;
    }
    Ok(Some(file))
}

/// Checks the tiers behind the first one. Errors: the superblock in the file at `path` names other
/// ones.
fn check_further(superblock: &Superblock, creation: &Creation, path: &Path) -> StoreResult<()> {
    let blocks = &superblock.geometry.tier_blocks[1..];
    let named = blocks.iter().zip(superblock.further).filter(|(blocks, _)| **blocks > 0);
    let named: Vec<_> = named.map(|(_, identity)| identity).collect();
    let given: Vec<_> = creation.places[1..].iter().map(TierPlace::identity_words).collect();
    match named == given {
        true => Ok(()),
        false => Err(StoreError::new("recover", path, Errno(libc::EINVAL))
            .advise("its metadata belongs to other tiers than the ones given")),
    }
}

impl Creation {
    /// Returns which memory nodes back which tier. There is a choice only if one is in memory.
    fn placement(&self) -> Placement {
        match self.places.iter().position(|place| *place == TierPlace::Ram) {
            Some(tier) => Placement { tier: tier as u8, ..self.geometry.placement },
            None => Placement::default(),
        }
    }

    /// Returns the options for formatting the first tier's file, which has this identity.
    fn media_options(&self, identity: [u64; 2]) -> MediaOptions {
        let geometry = &self.geometry;
        let mut further = [FurtherTier::default(); TIERS_MAX - 1];
        let behind_first = geometry.tier_blocks[1..].iter().zip(&self.places[1..]);
        for (tier, (&blocks, place)) in further.iter_mut().zip(behind_first) {
            *tier = FurtherTier { blocks, identity: place.identity_words() };
        }
        MediaOptions {
            hugeblock_bytes: geometry.hugeblock_bytes,
            durability: geometry.durability.unwrap_or(Durability::Sync),
            mount: geometry.mount.clone(),
            zero_block_checksum: checksum::zeros(u64::from(geometry.hugeblock_bytes)),
            identity,
            now: sys::now(),
            further,
            holds_data: self.metadata_bytes == 0,
        }
    }

    /// Returns the least `metadata_bytes` for tiers of this size.
    pub fn least_metadata_bytes(&self) -> u64 {
        let options = MediaOptions { holds_data: false, ..self.media_options([0; 2]) };
        Superblock::least_bytes_alone(&options)
    }
}

fn format(file: &MediaFile, creation: &Creation) -> cairn_core::Result<()> {
    let options = creation.media_options(label::words(file.identity()));
    let owner = Credentials { uid: sys::geteuid(), gid: sys::getegid() };
    cairn_core::format_media(file, &options, checksum::crc32c, owner).map(drop)
}

/// Whether there is a place for each tier, and a tier for each place.
fn fits(geometry: &Geometry, places: &[TierPlace]) -> bool {
    let is_durable = geometry.durability.is_some();
    let media_fit = !is_durable || matches!(places, [TierPlace::Medium { .. }, ..]);
    // A first tier without hugeblocks holds metadata alone.
    let first_with_data =
        usize::from(is_durable && places.len() > 1 && geometry.tier_blocks[0] == 0);
    let in_memory = places.iter().filter(|place| **place == TierPlace::Ram).count();
    let mut sizes = geometry.tier_blocks.iter().enumerate().skip(first_with_data);
    (1..=TIERS_MAX).contains(&places.len())
        && in_memory <= 1
        && media_fit
        && sizes.all(|(tier, &blocks)| (blocks > 0) == (tier < places.len()))
}

fn create_meta(directory: &Directory, names: &Names, mut geometry: Geometry) -> StoreResult<()> {
    geometry.zero_block_checksum = checksum::zeros(u64::from(geometry.hugeblock_bytes));
    let owner = Credentials { uid: sys::geteuid(), gid: sys::getegid() };
    MetaSegment::create(directory, &names.meta, geometry.segment_bytes(), |memory| {
        Microfs::format(memory, &geometry, checksum::crc32c, owner, sys::now())
    })
    .map(drop)
}

/// Opens the namespace `name` of `store`. Errors: it does not exist (`ENOENT`), its files are not
/// as they should be, the core refuses its metadata.
pub fn open_namespace(store: &Store, name: &str) -> StoreResult<Namespace> {
    let directory = Directory::open(store.path())?.checked_private()?;
    let names = Names::new(&directory, name)?;
    let memory = open_meta(&directory, &names)?;
    let meta_descriptors = [Some(memory.descriptor()), memory.shadow_descriptor()];
    let failed = |error: Error| directory.error("open namespace", &names.meta, error);
    let geometry = Microfs::geometry_in(&memory, checksum::crc32c).map_err(failed)?;
    let places = tiers::read(&directory, &names.tiers)?;
    if !fits(&geometry, &places) {
        return Err(directory
            .error("open namespace", &names.tiers, Errno(libc::EIO))
            .advise("it contradicts the namespace's metadata; the store is damaged"));
    }
    let files = open_files(&directory, &names, &places, geometry.durability.is_some())?;
    let (mut fs, data_offset) = match (geometry.durability, &places[0]) {
        (Some(_), TierPlace::Medium { path, .. }) => open_durable(memory, &files, path)?,
        _ => (Microfs::open(Box::new(memory), checksum::crc32c).map_err(failed)?, 0),
    };
    if geometry.is_divided() {
        numa::learn();
        fs = fs.with_nodes(numa::current_node);
    }
    let mut tiers: Vec<Arc<dyn Device>> = Vec::with_capacity(places.len());
    for (tier, (place, file)) in places.iter().zip(files).enumerate() {
        let bytes = tier_bytes(&geometry, tier);
        tiers.push(match (place, file) {
            (TierPlace::Medium { path, .. }, Some(opened)) => {
                let tier =
                    FileTier::new(opened.file, if tier == 0 { data_offset } else { 0 }, bytes);
                Arc::new(tier.map_err(|errno| StoreError::new("open tier", path, errno))?)
            }
            _ => Arc::new(open_ram(&directory, &names, bytes, &geometry)?),
        });
    }
    let handles = open_handles(&directory)?;
    Ok(Namespace { fs, tiers, name: name.to_owned(), directory, handles, meta_descriptors })
}

fn open_handles(directory: &Directory) -> StoreResult<Descriptor> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let opened = Descriptor::open(directory.raw(), HANDLES, flags, 0);
    Ok(opened.map_err(|errno| directory.error("use directory", HANDLES, errno))?.raise())
}

fn open_meta(directory: &Directory, names: &Names) -> StoreResult<MetaSegment> {
    MetaSegment::open(directory, &names.meta)?.with_shadow(directory, &names.image)
}

/// Opens the image that the namespace `live` of `store` holds, for reading. It shares the tiers of
/// `live`: the caller must not write to them.
///
/// Errors: as `open_namespace`; it holds no image (`ESTALE`). Every operation returns that error,
/// too, once the image has ended or was given up.
pub fn open_image(store: &Store, live: &Namespace) -> StoreResult<Namespace> {
    let directory = Directory::open(store.path())?.checked_private()?;
    let names = Names::new(&directory, &live.name)?;
    let failed = |error: Error| directory.error("open image", &names.meta, error);
    let memory = open_meta(&directory, &names)?;
    let meta_descriptors = [Some(memory.descriptor()), memory.shadow_descriptor()];
    let view = PrivateSegment::open(&directory, &names.meta)?;
    let image = ImageMemory::new(Arc::new(memory), Box::new(view), checksum::crc32c);
    let fs = image.and_then(|image| Microfs::open_image(image, checksum::crc32c));
    let (fs, handles) = (fs.map_err(failed)?, open_handles(&directory)?);
    let (tiers, name) = (live.tiers.clone(), live.name.clone());
    Ok(Namespace { fs, tiers, name, directory, handles, meta_descriptors })
}

/// Opens the media of the tiers that have one: mapped, or with their transit area.
fn open_files(
    directory: &Directory,
    names: &Names,
    places: &[TierPlace],
    is_durable: bool,
) -> StoreResult<Vec<Option<Opened>>> {
    let open = |(tier, place): (usize, &TierPlace)| match place {
        TierPlace::Ram => Ok(None),
        TierPlace::Medium { kind, path, identity } => {
            let has_metadata = is_durable && tier == 0;
            let (file, known) = match kind {
                MediumKind::Remote => {
                    open_remote(directory, &names.known[tier], path, has_metadata)?
                }
                _ => (MediaFile::open(path)?, None),
            };
            check_identity(path, &file, identity)?;
            let file = match kind {
                MediumKind::Dax => {
                    file.mapped().map_err(|errno| StoreError::new("map", path, errno))?
                }
                _ => file.with_transit(Transit::open(directory, &names.transit[tier])?),
            };
            if let Some(known) = known.clone().filter(|_| !has_metadata) {
                file.check_first(move |media| known.check(media));
            }
            Ok(Some(Opened { file: Arc::new(file), known }))
        }
    };
    places.iter().enumerate().map(open).collect()
}

/// An open medium, and what is recorded about it. If something is recorded, the medium itself still
/// has to be checked before its first use.
struct Opened {
    file: Arc<MediaFile>,
    known: Option<Known>,
}

/// Opens a namespace on another machine. It needs no connection if a process of this store has
/// recorded what is needed; else this process connects and records it.
fn open_remote(
    directory: &Directory,
    name: &CStr,
    path: &Path,
    has_metadata: bool,
) -> StoreResult<(MediaFile, Option<Known>)> {
    let is_enough =
        |known: &Known| !has_metadata || Superblock::read(known, checksum::crc32c).is_ok();
    let read = || Known::read(directory, name).filter(is_enough);
    let known = match read() {
        Some(known) => known,
        None => {
            let file = MediaFile::open(path)?;
            let failed = |error: Error| StoreError::new("open tier", path, error);
            let found = file.known().map_err(failed)?;
            found.iter().for_each(|found| found.leave(directory, name));
            let Some(known) = read() else {
                let is_other = |found: &Known| found.traits.shape.start != file.start();
                return match found.as_ref().is_some_and(is_other) {
                    true => Err(failed(Error::Io).advise(FORGOTTEN)),
                    false => Ok((file, None)),
                };
            };
            // This process does not keep its connection either: it may never need it again.
            known
        }
    };
    let file = MediaFile::open_known(path, &known)?;
    file.wait_in(Known::line(directory, name)?);
    Ok((file, Some(known)))
}

/// Opens a namespace whose metadata are in the first of the files, at `path`. Returns also the
/// offset of the hugeblocks in that file.
fn open_durable(
    memory: MetaSegment,
    files: &[Option<Opened>],
    path: &Path,
) -> StoreResult<(Microfs, u64)> {
    let failed = |error: Error| StoreError::new("open tier", path, error);
    let mut opened = files.iter().flatten();
    let Opened { file, known } = opened.next().ok_or(failed(Error::Invalid))?;
    let (memory, first) = (Box::new(memory), file.clone() as Arc<dyn Media>);
    let further = opened.map(|opened| opened.file.clone() as Arc<dyn Media>).collect();
    let source = known.as_ref().map_or(first.as_ref(), |known| known as &dyn Media);
    let superblock = Superblock::read(source, checksum::crc32c).map_err(failed)?;
    let data_offset = superblock.data_offset;
    let (fs, check) =
        Microfs::open_unseen(memory, checksum::crc32c, first.clone(), further, superblock)
            .map_err(failed)?;
    match known.clone() {
        None => check.check(first.as_ref()).map_err(failed)?,
        Some(known) => {
            let is_ours =
                move |media: &dyn Media| known.check(media).and_then(|()| check.check(media));
            file.check_first(is_ours);
        }
    }
    Ok((fs, data_offset))
}

fn check_identity(path: &Path, file: &MediaFile, identity: &Identity) -> StoreResult<()> {
    match file.identity() == identity {
        true => Ok(()),
        false => Err(StoreError::new("open tier", path, Errno(libc::EIO)).advise(
            "it is the tier of another store, or was replaced; this store has lost its tier",
        )),
    }
}

/// Removes the namespace `name` from `store`; its files and devices stay as they are. Nobody has it
/// open. A later `create` of that name removes the rest.
pub fn forget(store: &Store, name: &str) -> StoreResult<()> {
    let directory = store.directory();
    let _exclusive = directory.exclusive()?;
    directory.remove_file(&Names::new(directory, name)?.meta)
}

/// Returns the places of the tiers of the namespace `name` of `store`.
pub fn places(store: &Store, name: &str) -> StoreResult<Vec<TierPlace>> {
    let names = Names::new(store.directory(), name)?;
    tiers::read(store.directory(), &names.tiers)
}

/// Returns a number that distinguishes a stand-in from all others, earlier ones included. Disks
/// reuse inode numbers, so it combines that number with the time at which the stand-in lost its
/// name. Never 0.
pub fn stand_in_id(stat: &libc::stat) -> u64 {
    let seconds = (stat.st_ctime as u64) << 30;
    let removed = seconds.wrapping_add(stat.st_ctime_nsec as u64);
    (stat.st_ino ^ removed.rotate_left(24)).max(1)
}

impl Namespace {
    /// Returns its name within the store: `node`, or `rank-N`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the store's directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Calls `visit` with each descriptor that must stay open while the namespace is used.
    pub fn descriptors(&self, visit: &mut dyn FnMut(i32)) {
        visit(self.directory.raw());
        visit(self.handles.raw());
        self.meta_descriptors.into_iter().flatten().for_each(&mut *visit);
        self.tiers.iter().for_each(|tier| tier.descriptors(visit));
    }

    /// Returns a new `O_PATH` descriptor of the placeholder of open-file description `handle`, a
    /// socket inode, and that inode's number. The caller owns the descriptor; it is close-on-exec.
    pub fn placeholder(&self, handle: u32) -> SysResult<(i32, u64)> {
        let path = self.placeholder_path(handle);
        let open = || {
            let flags = libc::O_PATH | libc::O_NOFOLLOW;
            Descriptor::open(self.handles.raw(), &path, flags, 0)
        };
        let descriptor = match open() {
            Err(Errno(libc::ENOENT)) => {
                match sys::mknodat(self.handles.raw(), &path, libc::S_IFSOCK | 0o600) {
                    Ok(()) | Err(Errno(libc::EEXIST)) => open()?,
                    Err(errno) => return Err(errno),
                }
            }
            result => result?,
        };
        let stat = sys::fstat(descriptor.raw())?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFSOCK {
            return Err(Errno(libc::EIO));
        }
        Ok((descriptor.into_raw(), stat.st_ino))
    }

    /// Returns a new `O_PATH` descriptor of an empty directory without a name, and its
    /// [`stand_in_id`]. As a working directory it makes every lookup fail with `ENOENT`.
    pub fn stand_in(&self) -> SysResult<(i32, u64)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..STAND_IN_TRIES {
            let mut path = ShortPath::new();
            path.push(b"void-");
            path.push_number(u64::from(sys::gettid()));
            path.push(b".");
            path.push_number(COUNT.fetch_add(1, Ordering::Relaxed));
            match sys::mkdirat(self.handles.raw(), &path, 0o700) {
                Ok(()) => return self.take_stand_in(&path),
                // Left by a dead process, or by one with our id in another pid namespace.
                Err(Errno(libc::EEXIST)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno(libc::EEXIST))
    }

    fn take_stand_in(&self, path: &CStr) -> SysResult<(i32, u64)> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = Descriptor::open(self.handles.raw(), path, flags, 0);
        sys::unlinkat(self.handles.raw(), path, libc::AT_REMOVEDIR)?;
        let descriptor = opened?;
        let stat = sys::fstat(descriptor.raw())?;
        // A directory that another process put in its place still has a name. Some file systems
        // count one link for every directory.
        match stat.st_nlink {
            0 | 1 => Ok((descriptor.into_raw(), stand_in_id(&stat))),
            _ => Err(Errno(libc::EIO)),
        }
    }

    /// Lets processes of other users create files in the directory of placeholders, for which they
    /// have our descriptor. Nobody else gets there, because only its owner can enter the store's
    /// directory. They could replace the files of others there, so this is done only when a process
    /// needs it. If it fails, they cannot create anything.
    pub fn admit_others(&self) {
        let _ = sys::fchmodat(self.directory.raw(), HANDLES, 0o777);
    }

    /// Returns the descriptor of the directory of placeholders, tokens and lock files. Any process
    /// of the job that has this descriptor may use it.
    pub fn handles(&self) -> i32 {
        self.handles.raw()
    }

    /// Returns the name of the placeholder of open-file description `handle`.
    pub(crate) fn placeholder_path(&self, handle: u32) -> ShortPath {
        let mut path = ShortPath::new();
        path.push(self.name.as_bytes());
        path.push(b".");
        path.push_number(u64::from(handle));
        path
    }
}

/// Names of the files of a namespace.
struct Names {
    meta: CString,
    /// The shadow of the meta segment.
    image: CString,
    tiers: CString,
    ram: CString,
    /// The transit area of each tier's medium.
    transit: [CString; TIERS_MAX],
    /// The record about a namespace on another machine.
    known: [CString; TIERS_MAX],
    /// `ram` within the file system of huge pages; also the target of the link `ram` then.
    huge_ram: CString,
}

impl Names {
    fn new(directory: &Directory, name: &str) -> StoreResult<Names> {
        store::simple_name(directory, name)?;
        // A path of `handles/`, the name and a number must fit into a `ShortPath`.
        let file = |text: String| CString::new(text).expect("a simple name contains no NUL");
        Ok(Names {
            meta: file(format!("{name}.meta")),
            image: file(format!("{name}.image")),
            tiers: file(format!("{name}.tiers")),
            ram: file(format!("{name}.ram0")),
            transit: core::array::from_fn(|tier| file(format!("{name}.transit{tier}"))),
            known: core::array::from_fn(|tier| file(format!("{name}.known{tier}"))),
            huge_ram: file(format!("huge/{name}.ram0")),
        })
    }
}

/// Makes the files in the store itself. After a failure the caller removes them.
fn create_own(
    directory: &Directory,
    names: &Names,
    geometry: &Geometry,
    creation: &Creation,
) -> StoreResult<HugePages> {
    segment::create_file(directory, &names.image, geometry.shadow_bytes())?;
    let mut huge_pages = HugePages::NotWanted;
    for (tier, place) in creation.places.iter().enumerate() {
        match place {
            TierPlace::Ram => {}
            TierPlace::Medium { kind: MediumKind::Dax, .. } => continue,
            TierPlace::Medium { .. } => {
                Transit::create(directory, &names.transit[tier])?;
                continue;
            }
        }
        let bytes = tier_bytes(geometry, tier);
        if creation.want_huge_pages {
            huge_pages = huge::provide(directory, bytes)?;
        }
        let is_huge = huge_pages == HugePages::Mounted;
        let file = create_data_segment(directory, names, bytes, is_huge)?;
        numa::bind(file, geometry)
            .map_err(|errno| directory.error("choose memory nodes for", &names.ram, errno))?;
    }
    Ok(huge_pages)
}

/// Makes the files and devices outside the store. After a failure the caller removes them.
fn create_media(creation: &Creation) -> StoreResult<()> {
    let Creation { geometry, metadata_bytes, places, allocation, may_overwrite, .. } = creation;
    places.iter().enumerate().try_for_each(|(tier, place)| {
        let bytes = match (tier, *metadata_bytes) {
            (0, bytes @ 1..) => bytes,
            _ => tier_bytes(geometry, tier),
        };
        place.make(bytes, *allocation, *may_overwrite)
    })
}

/// Removes what a dead creator of the namespace `name` left behind, as `create` would. Does nothing
/// if the namespace was made. Errors: nobody can tell what is on the first tier.
pub fn remove_unfinished(store: &Store, name: &str) -> StoreResult<()> {
    let directory = store.directory();
    let names = Names::new(directory, name)?;
    let _exclusive = directory.exclusive()?;
    match directory.contains(&names.meta) {
        true => Ok(()),
        false => remove_leftovers(directory, &names),
    }
}

/// Removes what a dead creator left behind: without a meta segment nobody uses it. Files stay if
/// the first one may hold a namespace, because then that creator was to recover it from them.
fn remove_leftovers(directory: &Directory, names: &Names) -> StoreResult<()> {
    let places = tiers::read(directory, &names.tiers).unwrap_or_default();
    match places.first().map_or(Ok(false), TierPlace::may_hold_namespace)? {
        true => remove_own(directory, names),
        false => remove_tiers(directory, names, true),
    }
}

/// Removes what the creator of a namespace made, and nothing else of the same name. That creator
/// may be dead.
fn remove_tiers(directory: &Directory, names: &Names, is_of_dead: bool) -> StoreResult<()> {
    removal::empty_tiers(directory, names, Vec::new(), is_of_dead)?;
    remove_own(directory, names)
}

/// Removes the files in the store itself.
fn remove_own(directory: &Directory, names: &Names) -> StoreResult<()> {
    let parts = [&names.image, &names.tiers, &names.ram, &names.huge_ram];
    let mut all = parts.into_iter().chain(&names.transit).chain(&names.known);
    all.try_for_each(|part| directory.remove_file(part))
}

fn tier_bytes(geometry: &Geometry, tier: usize) -> u64 {
    u64::from(geometry.tier_blocks[tier]) * u64::from(geometry.hugeblock_bytes)
}

/// Creates `<ns>.ram0`, or with huge pages a link of that name to `huge/<ns>.ram0`.
fn create_data_segment(
    directory: &Directory,
    names: &Names,
    bytes: u64,
    huge_pages: bool,
) -> StoreResult<Descriptor> {
    if !huge_pages {
        return segment::create_file(directory, &names.ram, bytes);
    }
    let file = segment::create_file(directory, &names.huge_ram, bytes)?;
    sys::symlinkat(&names.huge_ram, directory.raw(), &names.ram)
        .map_err(|errno| directory.error("create link", &names.ram, errno))?;
    Ok(file)
}

fn open_ram(
    directory: &Directory,
    names: &Names,
    expected: u64,
    geometry: &Geometry,
) -> StoreResult<RamDevice> {
    let mut target = [0_u8; 256];
    let huge_pages = match sys::readlinkat(directory.raw(), &names.ram, &mut target) {
        // Follows only a link to the place where we put the segment ourselves.
        Ok(length) => target[..length] == *names.huge_ram.to_bytes(),
        Err(_) => false,
    };
    let name = if huge_pages { &names.huge_ram } else { &names.ram };
    let (file, bytes) = segment::open_file(directory, name)?;
    if bytes != expected {
        return Err(directory
            .error("open data segment", name, Errno(libc::EIO))
            .advise("its size contradicts the namespace's metadata; the store is damaged"));
    }
    RamDevice::new(file, bytes, geometry.hugeblock_bytes, huge_pages)
        .map_err(|errno| directory.error("map data segment", name, errno))
}

#[cfg(test)]
mod tests;
