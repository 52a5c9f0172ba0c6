//! A namespace of a store: its segments created and opened, and the kernel objects that stand for
//! its open files and directories.
//!
//! Must stay true: a namespace exists when its meta segment does; that is made last, so every tier
//! is there by then. Placeholders and stand-ins are `O_PATH` descriptors: no call can read or write
//! through them.
//! Does not plan, and does not know file names inside the namespace.

pub(crate) mod removal;

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use cairn_core::{
    Credentials, Durability, Error, FurtherTier, Geometry, ImageMemory, Media, MediaOptions,
    Microfs, Placement, Rendezvous, Superblock, TIERS_MAX,
};

use crate::checksum;
use crate::descriptor::Descriptor;
use crate::device::Device;
use crate::directory::{Directory, StoreError, StoreResult};
use crate::file::FileTier;
use crate::huge::{self, HugePages};
use crate::label::{self, Identity};
use crate::media_file::{Allocation, MediaFile};
use crate::medium::MediumKind;
use crate::medium::known::Known;
use crate::numa;
use crate::ram::RamDevice;
use crate::segment::{self, MetaSegment, PrivateSegment};
use crate::short_path::ShortPath;
use crate::store::{self, HANDLES, Store};
use crate::sys::{self, Errno, SysResult};
use crate::tiers::{self, TierPlace};
use crate::transit::Transit;

/// Tries for a free name of a stand-in; other processes make names of their own.
const STAND_IN_TRIES: u32 = 16;
const FORGOTTEN: &str = "the machine that it is on was started again: what was written there and not made durable may be gone";

/// An open namespace.
pub struct Namespace {
    /// The engine over its meta segment.
    pub fs: Microfs,
    /// Its tiers; the index is the core's tier number.
    pub tiers: Vec<Box<dyn Device>>,
    name: String,
    directory: Directory,
    /// Where placeholders are: a process that has it open comes there with whatever rights it has
    /// left.
    handles: Descriptor,
    meta_descriptors: [Option<i32>; 2],
}

/// How a namespace is made.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Its shape; `zero_block_checksum` and which tier is in memory are set here. With `durability`
    /// the first tier is a file with all metadata in it, and its size decides about the rest.
    pub geometry: Geometry,
    /// Bytes of that file if it holds metadata alone; then the first tier has no hugeblocks. Else
    /// 0.
    pub metadata_bytes: u64,
    /// What its tiers are made of, as many as the geometry has.
    pub places: Vec<TierPlace>,
    /// Ask for huge pages in memory.
    pub want_huge_pages: bool,
    /// When the space of files is taken.
    pub allocation: Allocation,
    /// What a block device holds may be overwritten, unless a store uses it.
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

/// Creates the namespace `name` in `store`. The result says whether its memory has huge pages. If
/// it is to be durable and its first file or device holds a namespace already, it is recovered from
/// that instead of made.
/// Errors: it exists, or something stands where a file is to be made or on a device (`EEXIST`);
/// places and geometry do not fit, or more than one tier is in memory (`EINVAL`); no space; a file
/// is in use (`EWOULDBLOCK`), missing (`ENOENT`) or damaged.
pub fn create(store: &Store, name: &str, mut creation: Creation) -> StoreResult<HugePages> {
    let directory = store.directory();
    let names = Names::new(directory, name)?;
    if !fits(&creation.geometry, &creation.places) {
        return Err(directory
            .error("create namespace", &names.meta, Errno(libc::EINVAL))
            .advise("one tier at most is in memory; what is durable has a file first"));
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
        // The error that is reported is the first one.
        let _ = remove_tiers(directory, &names, false);
    }
    made
}

/// Makes a namespace on files or devices, or makes it again from what they hold; which then stay
/// whatever fails.
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
                file.begin_again(path)?;
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
        // The error that is reported is the first one.
        let _ = match is_new {
            true => remove_tiers(directory, names, false),
            false => remove_own(directory, names),
        };
    }
    made
}

/// The file of a tier, if it is one, while nobody else uses it; with all the space that it needs to
/// be mapped.
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

/// Errors: the tiers behind the first one are not those that the superblock in the file at `path`
/// names.
fn check_further(superblock: &Superblock, creation: &Creation, path: &Path) -> StoreResult<()> {
    let blocks = &superblock.geometry.tier_blocks[1..];
    let named = blocks.iter().zip(superblock.further).filter(|(blocks, _)| **blocks > 0);
    let named: Vec<_> = named.map(|(_, identity)| identity).collect();
    let given: Vec<_> = creation.places[1..].iter().map(TierPlace::identity_words).collect();
    match named == given {
        true => Ok(()),
        false => Err(StoreError::new("recover", path, Errno(libc::EINVAL))
            .advise("its metadata are of other tiers than those behind it here")),
    }
}

impl Creation {
    /// Which memory nodes back which tier: there is nothing to choose unless one is in memory.
    fn placement(&self) -> Placement {
        match self.places.iter().position(|place| *place == TierPlace::Ram) {
            Some(tier) => Placement { tier: tier as u8, ..self.geometry.placement },
            None => Placement::default(),
        }
    }

    /// What to make of the first tier's file, which has this identity.
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

    /// The least `metadata_bytes` for tiers of this size.
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
    // That is the one without hugeblocks: it holds metadata alone.
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
/// what they should be, the core refuses its metadata.
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
    let mut tiers: Vec<Box<dyn Device>> = Vec::with_capacity(places.len());
    for (tier, (place, file)) in places.iter().zip(files).enumerate() {
        let bytes = tier_bytes(&geometry, tier);
        tiers.push(match (place, file) {
            (TierPlace::Medium { path, .. }, Some(opened)) => {
                let tier =
                    FileTier::new(opened.file, if tier == 0 { data_offset } else { 0 }, bytes);
                Box::new(tier.map_err(|errno| StoreError::new("open tier", path, errno))?)
            }
            _ => Box::new(open_ram(&directory, &names, bytes, &geometry)?),
        });
    }
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let handles = Descriptor::open(directory.raw(), HANDLES, flags, 0)
        .map_err(|errno| directory.error("use directory", HANDLES, errno))?
        .raise();
    Ok(Namespace { fs, tiers, name: name.to_owned(), directory, handles, meta_descriptors })
}

fn open_meta(directory: &Directory, names: &Names) -> StoreResult<MetaSegment> {
    MetaSegment::open(directory, &names.meta)?.with_shadow(directory, &names.image)
}

/// Opens the image that the namespace `name` of `store` holds, with its tiers, to look at: nothing
/// is to be written to them.
/// Errors: as `open_namespace`; it holds none (`ESTALE`), which every operation says once the image
/// has ended or was given up.
pub fn open_image(store: &Store, name: &str) -> StoreResult<Namespace> {
    let mut namespace = open_namespace(store, name)?;
    let directory = &namespace.directory;
    let names = Names::new(directory, name)?;
    let failed = |error: Error| directory.error("open image", &names.meta, error);
    let memory = open_meta(directory, &names)?;
    let descriptors = [Some(memory.descriptor()), memory.shadow_descriptor()];
    let view = PrivateSegment::open(directory, &names.meta)?;
    let image = ImageMemory::new(Arc::new(memory), Box::new(view), checksum::crc32c);
    let fs = image.and_then(|image| Microfs::open_image(image, checksum::crc32c));
    (namespace.fs, namespace.meta_descriptors) = (fs.map_err(failed)?, descriptors);
    Ok(namespace)
}

/// Makes a cut through several namespaces at one moment: no call is in the image of one of them
/// without what it depends on in the others. Returns the numbers of the images. Errors: as
/// `Microfs::begin_image`; then none is held that was begun here.
pub fn begin_images(namespaces: &[&Namespace]) -> cairn_core::Result<Vec<u64>> {
    let rendezvous = &Rendezvous::new(namespaces.len());
    // A thread has one lock.
    let begun: Vec<_> = std::thread::scope(|scope| {
        let begin = |namespace: &Namespace| namespace.fs.begin_image_together(rendezvous);
        let threads = namespaces.iter().map(|&namespace| scope.spawn(move || begin(namespace)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Busy))).collect()
    });
    if begun.iter().any(Result::is_err) {
        for (namespace, _) in namespaces.iter().zip(&begun).filter(|(_, begun)| begun.is_ok()) {
            namespace.fs.end_image()?;
        }
    }
    begun.into_iter().collect()
}

/// Opens the files of those tiers that are in files, mapped or with what is on its way there.
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
                _ => file.by_way_of(Transit::open(directory, &names.transit[tier])?),
            };
            if let Some(known) = known.clone().filter(|_| !has_metadata) {
                file.check_first(Box::new(move |media| known.check(media)));
            }
            Ok(Some(Opened { file: Arc::new(file), known }))
        }
    };
    places.iter().enumerate().map(open).collect()
}

/// An open medium, and what is known of it if it was not looked at: then it still has to be, before
/// it is used.
struct Opened {
    file: Arc<MediaFile>,
    known: Option<Known>,
}

/// Opens a namespace on another machine, without a connection if a process of this store has left
/// what it takes; else it does so itself.
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
            // Nor does this process keep a connection that it may never need again.
            known
        }
    };
    let file = MediaFile::open_known(path, &known)?;
    file.wait_in(Known::line(directory, name)?);
    Ok((file, Some(known)))
}

/// Opens a namespace whose metadata are in the first of the files, at `path`; where its hugeblocks
/// begin there, too.
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
            file.check_first(Box::new(is_ours));
        }
    }
    Ok((fs, data_offset))
}

fn check_identity(path: &Path, file: &MediaFile, identity: &Identity) -> StoreResult<()> {
    match file.identity() == identity {
        true => Ok(()),
        false => Err(StoreError::new("open tier", path, Errno(libc::EIO)).advise(
            "it is the tier of another store, or was replaced; this store has lost its own",
        )),
    }
}

/// Removes the namespace `name` from `store`; its files and devices stay as they are. Nobody has it
/// open. Whoever makes a namespace of that name takes away what else is left of this one.
pub fn forget(store: &Store, name: &str) -> StoreResult<()> {
    let directory = store.directory();
    let _exclusive = directory.exclusive()?;
    directory.remove_file(&Names::new(directory, name)?.meta)
}

/// What the tiers of the namespace `name` of `store` are made of.
pub fn places(store: &Store, name: &str) -> StoreResult<Vec<TierPlace>> {
    let names = Names::new(store.directory(), name)?;
    tiers::read(store.directory(), &names.tiers)
}

/// What tells a stand-in from others, earlier ones included, whose inode numbers disks give out
/// again: with the number, when it lost its name. Never 0.
pub fn stand_in_id(stat: &libc::stat) -> u64 {
    let seconds = (stat.st_ctime as u64) << 30;
    let removed = seconds.wrapping_add(stat.st_ctime_nsec as u64);
    (stat.st_ino ^ removed.rotate_left(24)).max(1)
}

impl Namespace {
    /// Its name within the store: `node`, or `rank-N`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The store's directory.
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

    /// A new `O_PATH` descriptor of the socket inode that stands for open-file description
    /// `handle`, and that inode's number. The caller owns the descriptor; it is close-on-exec.
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

    /// A new `O_PATH` descriptor of an empty directory that no longer has a name, to be a working
    /// directory in which every lookup fails with `ENOENT`, and its [`stand_in_id`].
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
                // Of a process with our id in another pid namespace, or of a dead one.
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
        // Another one that was put in its place still has a name. Some file systems count one link
        // of a directory, whatever it has.
        match stat.st_nlink {
            0 | 1 => Ok((descriptor.into_raw(), stand_in_id(&stat))),
            _ => Err(Errno(libc::EIO)),
        }
    }

    /// Lets processes of other users in, which have our descriptor of the directory of
    /// placeholders: nobody else comes there, because the store's directory is its owner's alone.
    /// They can put their own things in the place of others there, so it is not done before one is
    /// needed. Where it fails, they make nothing new.
    pub fn admit_others(&self) {
        let _ = sys::fchmodat(self.directory.raw(), HANDLES, 0o777);
    }

    /// The directory of placeholders, tokens and files to lock, which any process of the job may
    /// use that has this descriptor.
    pub fn handles(&self) -> i32 {
        self.handles.raw()
    }

    /// Name of the placeholder of open-file description `handle`.
    pub(crate) fn placeholder_path(&self, handle: u32) -> ShortPath {
        let mut path = ShortPath::new();
        path.push(self.name.as_bytes());
        path.push(b".");
        path.push_number(u64::from(handle));
        path
    }
}

/// The files of a namespace.
struct Names {
    meta: CString,
    /// The shadow of the meta segment.
    image: CString,
    tiers: CString,
    ram: CString,
    /// What is on its way to the file of a tier.
    transit: [CString; TIERS_MAX],
    /// What is known of a namespace on another machine.
    known: [CString; TIERS_MAX],
    /// `ram` within the file system of huge pages; also what the link `ram` then contains.
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

/// Makes what stands in the store itself. What failed is removed by the caller.
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

/// Makes what stands outside the store. What failed is removed by the caller.
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

/// Removes what a creator of the namespace `name` that died has left, if it was not made: as
/// `create` would. Errors: nobody can tell what is on the first tier.
pub fn remove_unfinished(store: &Store, name: &str) -> StoreResult<()> {
    let directory = store.directory();
    let names = Names::new(directory, name)?;
    let _exclusive = directory.exclusive()?;
    match directory.contains(&names.meta) {
        true => Ok(()),
        false => remove_leftovers(directory, &names),
    }
}

/// Removes what a creator that died has left: without a meta segment nobody uses it. Files stay if
/// the first one may hold a namespace, which was to be made again from them.
fn remove_leftovers(directory: &Directory, names: &Names) -> StoreResult<()> {
    let places = tiers::read(directory, &names.tiers).unwrap_or_default();
    match places.first().map_or(Ok(false), TierPlace::may_hold_namespace)? {
        true => remove_own(directory, names),
        false => remove_tiers(directory, names, true),
    }
}

/// Removes what the creator of a namespace made, which may have died, and nothing else of the same
/// name.
fn remove_tiers(directory: &Directory, names: &Names, is_of_dead: bool) -> StoreResult<()> {
    removal::empty_tiers(directory, names, Vec::new(), is_of_dead)?;
    remove_own(directory, names)
}

/// Removes what stands in the store itself.
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
        // Only to where we put it ourselves.
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
