//! A namespace of a store: its segments created and opened, and the kernel objects that stand for
//! its open files and directories.
//!
//! Must stay true: a namespace exists when its meta segment does; that is made last, so every tier
//! is there by then. Placeholders and stand-ins are `O_PATH` descriptors: no call can read or write
//! through them.
//! Does not plan, and does not know file names inside the namespace.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use cairn_core::{
    Credentials, Durability, Error, Geometry, MediaOptions, Microfs, Superblock, TIERS_MAX,
};

use crate::checksum;
use crate::descriptor::Descriptor;
use crate::device::Device;
use crate::directory::{Directory, StoreError, StoreResult};
use crate::file::FileTier;
use crate::huge::{self, HugePages};
use crate::label::Identity;
use crate::media_file::{Allocation, MediaFile};
use crate::ram::RamDevice;
use crate::segment::{self, MetaSegment};
use crate::short_path::ShortPath;
use crate::store::{self, HANDLES, Store, VOID};
use crate::sys::{self, Errno, SysResult};
use crate::tiers::{self, TierPlace};

/// Tries for a free name in `void/`; other processes make names of their own.
const STAND_IN_TRIES: u32 = 16;

/// An open namespace.
pub struct Namespace {
    /// The engine over its meta segment.
    pub fs: Microfs,
    /// Its tiers; the index is the core's tier number.
    pub tiers: Vec<Box<dyn Device>>,
    name: String,
    directory: Directory,
    meta_descriptor: i32,
}

/// How a namespace is made.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Its shape; `zero_block_checksum` is set here. What its first tier is durable for, `durability`, counts if that is a
    /// file; then the file's size decides about the rest.
    pub geometry: Geometry,
    /// What its tiers are made of, as many as the geometry has.
    pub places: Vec<TierPlace>,
    /// Ask for huge pages in memory.
    pub want_huge_pages: bool,
    /// When the space of files is taken.
    pub allocation: Allocation,
}

/// Creates the namespace `name` of `geometry` in `store`, with one tier, in memory. Result and errors as `create`.
pub fn create_namespace(
    store: &Store,
    name: &str,
    geometry: Geometry,
    want_huge_pages: bool,
) -> StoreResult<HugePages> {
    let places = vec![TierPlace::Ram];
    let allocation = Allocation::AtOnce;
    create(store, name, Creation { geometry, places, want_huge_pages, allocation })
}

/// Creates the namespace `name` in `store`. The result says whether its memory has huge pages.
/// A file that is the first tier and holds a namespace already is recovered from instead of made.
/// Errors: it exists, or something stands where a file is to be made (`EEXIST`); places and geometry do not fit, more than
/// one tier is in memory, or others follow a file (`EINVAL`); no space; the file is in use (`EWOULDBLOCK`) or damaged.
pub fn create(store: &Store, name: &str, creation: Creation) -> StoreResult<HugePages> {
    let directory = store.directory();
    let names = Names::new(directory, name)?;
    if !fits(&creation.geometry, &creation.places) {
        return Err(directory
            .error("create namespace", &names.meta, Errno(libc::EINVAL))
            .advise("one tier at most is in memory; a file as the first tier is the only one"));
    }
    let _exclusive = directory.exclusive()?;
    if directory.contains(&names.meta) {
        return Err(directory.error("create namespace", &names.meta, Errno(libc::EEXIST)));
    }
    // What a creator that died has left: without a meta segment nobody uses it.
    remove_tiers(directory, &names)?;
    if let [TierPlace::File { path, identity }] = &creation.places[..] {
        return create_durable(directory, &names, (path, identity), &creation)
            .map(|()| HugePages::NotWanted);
    }
    let made = create_tiers(directory, &names, &creation).and_then(|huge_pages| {
        create_meta(directory, &names, creation.geometry)?;
        Ok(huge_pages)
    });
    if made.is_err() {
        // The error that is reported is the first one.
        let _ = remove_tiers(directory, &names);
    }
    made
}

/// Makes a namespace on a file, or makes it again from what the file holds. A file that was there stays whatever fails.
fn create_durable(
    directory: &Directory,
    names: &Names,
    (path, identity): (&Path, &Identity),
    creation: &Creation,
) -> StoreResult<()> {
    let is_new = !path.exists();
    tiers::write(directory, &names.tiers, &creation.places)?;
    let made = (|| {
        if is_new {
            let bytes = tier_bytes(&creation.geometry, 0);
            MediaFile::create(path, bytes, *identity, creation.allocation)?;
        }
        let file = MediaFile::open_alone(path)?;
        check_identity(path, &file, identity)?;
        let failed = |error: Error| StoreError::new("recover", path, error);
        if is_new {
            format(&file, creation).map_err(failed)?;
        }
        let superblock = Superblock::read(&file, checksum::crc32c).map_err(failed)?;
        let bytes = superblock.geometry.segment_bytes();
        MetaSegment::create(directory, &names.meta, bytes, |memory| {
            cairn_core::recover(&file, memory, checksum::crc32c).map(drop)
        })?;
        file.share().map_err(|errno| StoreError::new("open tier", path, errno))
    })();
    if made.is_err() {
        // The error that is reported is the first one.
        let _ = match is_new {
            true => remove_tiers(directory, names),
            false => directory.remove_file(&names.tiers),
        };
    }
    made
}

fn format(file: &MediaFile, creation: &Creation) -> cairn_core::Result<()> {
    let geometry = &creation.geometry;
    let half = |at: usize| {
        file.identity()[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    let options = MediaOptions {
        hugeblock_bytes: geometry.hugeblock_bytes,
        durability: geometry.durability.unwrap_or(Durability::Sync),
        mount: geometry.mount.clone(),
        zero_block_checksum: checksum::zeros(u64::from(geometry.hugeblock_bytes)),
        identity: [half(0), half(8)],
        now: sys::now(),
    };
    let owner = Credentials { uid: sys::geteuid(), gid: sys::getegid() };
    cairn_core::format_media(file, &options, checksum::crc32c, owner).map(drop)
}

/// Whether there is a place for each tier, and a tier for each place.
fn fits(geometry: &Geometry, places: &[TierPlace]) -> bool {
    let durable_alone = matches!(places, [TierPlace::Ram, ..] | [TierPlace::File { .. }]);
    let sizes = geometry.tier_blocks.iter().enumerate();
    let in_memory = places.iter().filter(|place| **place == TierPlace::Ram).count();
    (1..=TIERS_MAX).contains(&places.len())
        && in_memory <= 1
        && durable_alone
        && sizes.clone().all(|(tier, &blocks)| (blocks > 0) == (tier < places.len()))
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
    let memory = MetaSegment::open(&directory, &names.meta)?;
    let meta_descriptor = memory.descriptor();
    let failed = |error: Error| directory.error("open namespace", &names.meta, error);
    let (fs, tiers) = match &tiers::read(&directory, &names.tiers)?[..] {
        [TierPlace::File { path, identity }] => open_durable(memory, path, identity)?,
        places => {
            let fs = Microfs::open(Box::new(memory), checksum::crc32c).map_err(failed)?;
            let tiers = open_tiers(&directory, &names, fs.geometry(), places)?;
            (fs, tiers)
        }
    };
    Ok(Namespace { fs, tiers, name: name.to_owned(), directory, meta_descriptor })
}

/// Opens a namespace whose log and blocks are in the file at `path`.
fn open_durable(
    memory: MetaSegment,
    path: &Path,
    identity: &Identity,
) -> StoreResult<(Microfs, Vec<Box<dyn Device>>)> {
    let failed = |error: Error| StoreError::new("open tier", path, error);
    let file = Arc::new(MediaFile::open(path)?);
    check_identity(path, &file, identity)?;
    let superblock = Superblock::read(file.as_ref(), checksum::crc32c).map_err(failed)?;
    let fs = Microfs::open_durable(Box::new(memory), checksum::crc32c, file.clone());
    let fs = fs.map_err(failed)?;
    let tier = FileTier::new(file, superblock.data_offset, tier_bytes(fs.geometry(), 0));
    let tier = tier.map_err(|errno| StoreError::new("open tier", path, errno))?;
    Ok((fs, vec![Box::new(tier)]))
}

fn check_identity(path: &Path, file: &MediaFile, identity: &Identity) -> StoreResult<()> {
    match file.identity() == identity {
        true => Ok(()),
        false => Err(StoreError::new("open tier", path, Errno(libc::EIO)).advise(
            "it is the tier of another store, or was replaced; this store has lost its own",
        )),
    }
}

/// What the tiers of the namespace `name` of `store` are made of.
pub fn places(store: &Store, name: &str) -> StoreResult<Vec<TierPlace>> {
    let names = Names::new(store.directory(), name)?;
    tiers::read(store.directory(), &names.tiers)
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
        visit(self.meta_descriptor);
        self.tiers.iter().for_each(|tier| tier.descriptors(visit));
    }

    /// A new `O_PATH` descriptor of the socket inode that stands for open-file description
    /// `handle`, and that inode's number. The caller owns the descriptor; it is close-on-exec.
    pub fn placeholder(&self, handle: u32) -> SysResult<(i32, u64)> {
        let path = self.placeholder_path(handle);
        let open = || {
            let flags = libc::O_PATH | libc::O_NOFOLLOW;
            Descriptor::open(self.directory.raw(), &path, flags, 0)
        };
        let descriptor = match open() {
            Err(Errno(libc::ENOENT)) => {
                match sys::mknodat(self.directory.raw(), &path, libc::S_IFSOCK | 0o600) {
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
    /// directory in which every lookup fails with `ENOENT`, and its inode's number.
    pub fn stand_in(&self) -> SysResult<(i32, u64)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..STAND_IN_TRIES {
            let mut path = ShortPath::new();
            path.push(VOID.to_bytes());
            path.push(b"/");
            path.push_number(u64::from(sys::gettid()));
            path.push(b".");
            path.push_number(COUNT.fetch_add(1, Ordering::Relaxed));
            match sys::mkdirat(self.directory.raw(), &path, 0o700) {
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
        let opened = Descriptor::open(self.directory.raw(), path, flags, 0);
        sys::unlinkat(self.directory.raw(), path, libc::AT_REMOVEDIR)?;
        let descriptor = opened?;
        let stat = sys::fstat(descriptor.raw())?;
        Ok((descriptor.into_raw(), stat.st_ino))
    }

    fn placeholder_path(&self, handle: u32) -> ShortPath {
        let mut path = ShortPath::new();
        path.push(HANDLES.to_bytes());
        path.push(b"/");
        path.push(self.name.as_bytes());
        path.push(b".");
        path.push_number(u64::from(handle));
        path
    }
}

/// The files of a namespace.
struct Names {
    meta: CString,
    tiers: CString,
    ram: CString,
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
            tiers: file(format!("{name}.tiers")),
            ram: file(format!("{name}.ram0")),
            huge_ram: file(format!("huge/{name}.ram0")),
        })
    }
}

/// Makes the tiers of a namespace, after the list of them. What failed is removed by the caller.
fn create_tiers(
    directory: &Directory,
    names: &Names,
    creation: &Creation,
) -> StoreResult<HugePages> {
    tiers::write(directory, &names.tiers, &creation.places)?;
    let mut huge_pages = HugePages::NotWanted;
    for (tier, place) in creation.places.iter().enumerate() {
        let bytes = tier_bytes(&creation.geometry, tier);
        match place {
            TierPlace::Ram => {
                if creation.want_huge_pages {
                    huge_pages = huge::provide(directory, bytes)?;
                }
                let is_huge = huge_pages == HugePages::Mounted;
                create_data_segment(directory, names, bytes, is_huge)?;
            }
            TierPlace::File { path, identity } => {
                MediaFile::create(path, bytes, *identity, creation.allocation)?;
            }
        }
    }
    Ok(huge_pages)
}

/// Removes what `create_tiers` made, and nothing else of the same name.
fn remove_tiers(directory: &Directory, names: &Names) -> StoreResult<()> {
    // A list that was not finished named no file yet that was made.
    for place in tiers::read(directory, &names.tiers).unwrap_or_default() {
        place.remove()?;
    }
    directory.remove_file(&names.tiers)?;
    directory.remove_file(&names.ram)?;
    directory.remove_file(&names.huge_ram)
}

/// Opens the tiers in order.
fn open_tiers(
    directory: &Directory,
    names: &Names,
    geometry: &Geometry,
    places: &[TierPlace],
) -> StoreResult<Vec<Box<dyn Device>>> {
    if !fits(geometry, places) {
        return Err(directory
            .error("open namespace", &names.tiers, Errno(libc::EIO))
            .advise("it contradicts the namespace's metadata; the store is damaged"));
    }
    let mut tiers: Vec<Box<dyn Device>> = Vec::with_capacity(places.len());
    for (tier, place) in places.iter().enumerate() {
        let bytes = tier_bytes(geometry, tier);
        tiers.push(match place {
            TierPlace::Ram => Box::new(open_ram(directory, names, bytes, geometry)?),
            TierPlace::File { path, identity } => Box::new(open_file(path, identity, bytes)?),
        });
    }
    Ok(tiers)
}

fn tier_bytes(geometry: &Geometry, tier: usize) -> u64 {
    u64::from(geometry.tier_blocks[tier]) * u64::from(geometry.hugeblock_bytes)
}

fn open_file(path: &Path, identity: &Identity, bytes: u64) -> StoreResult<FileTier> {
    let file = MediaFile::open(path)?;
    check_identity(path, &file, identity)?;
    FileTier::new(Arc::new(file), 0, bytes)
        .map_err(|errno| StoreError::new("open tier", path, errno))
}

/// Creates `<ns>.ram0`, or with huge pages a link of that name to `huge/<ns>.ram0`.
fn create_data_segment(
    directory: &Directory,
    names: &Names,
    bytes: u64,
    huge_pages: bool,
) -> StoreResult<()> {
    if !huge_pages {
        return segment::create_file(directory, &names.ram, bytes).map(drop);
    }
    segment::create_file(directory, &names.huge_ram, bytes)?;
    sys::symlinkat(&names.huge_ram, directory.raw(), &names.ram)
        .map_err(|errno| directory.error("create link", &names.ram, errno))
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
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;

    fn geometry() -> Geometry {
        Geometry {
            hugeblock_bytes: 32 * 1024,
            tier_blocks: [128, 0, 0, 0],
            mount: b"/cairn".to_vec(),
            zero_block_checksum: 0,
            durability: None,
            inode_capacity: 1000,
        }
    }

    fn store(scratch: &Scratch) -> Store {
        Store::create(scratch.0.path(), "job").unwrap()
    }

    #[test]
    fn created_namespace_opens_with_a_working_tier() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let huge = create_namespace(&store, "node", geometry(), false).unwrap();
        assert_eq!(huge, HugePages::NotWanted);
        let namespace = open_namespace(&store, "node").unwrap();
        assert_eq!(namespace.tiers[0].bytes(), 128 * 32 * 1024);
        assert_eq!(store.namespaces().unwrap(), ["node"]);
        let mut count = 0;
        namespace.descriptors(&mut |descriptor| count += i32::from(descriptor > 2));
        assert_eq!(count, 3);
    }

    #[test]
    fn namespace_that_exists_is_not_replaced() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        create_namespace(&store, "node", geometry(), false).unwrap();
        let error = create_namespace(&store, "node", geometry(), false).unwrap_err();
        assert_eq!(error.errno, libc::EEXIST);
        assert!(open_namespace(&store, "node").is_ok());
    }

    #[test]
    fn leftovers_of_a_dead_creator_are_replaced() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        std::fs::write(store.path().join("node.ram0"), b"half").unwrap();
        std::fs::write(store.path().join("node.meta.new"), b"half").unwrap();
        create_namespace(&store, "node", geometry(), false).unwrap();
        assert!(open_namespace(&store, "node").is_ok());
    }

    #[test]
    fn data_segment_of_the_wrong_size_is_refused() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        create_namespace(&store, "node", geometry(), false).unwrap();
        let path = store.path().join("node.ram0");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let error = open_namespace(&store, "node").err().unwrap();
        assert_eq!((error.errno, error.path), (libc::EIO, path));
    }

    #[test]
    fn refusal_of_the_core_says_what_is_wrong() {
        use cairn_core::Error;
        use std::os::unix::fs::FileExt;
        let scratch = Scratch::new();
        let store = store(&scratch);
        create_namespace(&store, "node", geometry(), false).unwrap();
        let path = store.path().join("node.meta");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let refusal_with = |word: u64, value: u64| {
            file.write_all_at(&value.to_le_bytes(), 8 * word).unwrap();
            open_namespace(&store, "node").err().unwrap().refusal
        };
        let newer = cairn_core::FORMAT_VERSION + 1;
        let unsupported = refusal_with(cairn_core::LOCK_WORDS as u64 + 1, u64::from(newer));
        let supported = cairn_core::FORMAT_VERSION;
        assert_eq!(unsupported, Some(Error::UnsupportedVersion { found: newer, supported }));
        let corrupt = refusal_with(cairn_core::LOCK_WORDS as u64, 0);
        assert!(matches!(corrupt, Some(Error::Corrupt { .. })), "{corrupt:?}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open_namespace(&store, "node").err().unwrap().refusal, None);
    }

    #[test]
    fn link_to_a_foreign_data_segment_is_not_followed() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        create_namespace(&store, "node", geometry(), false).unwrap();
        let path = store.path().join("node.ram0");
        std::fs::rename(&path, store.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert_eq!(open_namespace(&store, "node").err().unwrap().errno, libc::ELOOP);
    }

    #[test]
    fn tiers_without_a_place_and_places_without_a_tier_are_refused() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let file = || TierPlace::new_file(&scratch.0.path().join("tier")).unwrap();
        for (tier_blocks, places) in [
            ([128, 1, 0, 0], vec![TierPlace::Ram]),
            ([128, 0, 0, 0], vec![TierPlace::Ram, file()]),
            ([128, 0, 1, 0], vec![TierPlace::Ram, file()]),
            ([128, 1, 0, 0], vec![TierPlace::Ram, TierPlace::Ram]),
            ([0; 4], vec![]),
        ] {
            let creation = Creation { places, ..spilling(&scratch, tier_blocks) };
            let error = create(&store, "node", creation).unwrap_err();
            assert_eq!(error.errno, libc::EINVAL);
        }
    }

    fn spilling(scratch: &Scratch, tier_blocks: [u32; TIERS_MAX]) -> Creation {
        let path = scratch.0.path().join("tier");
        Creation {
            geometry: Geometry { tier_blocks, ..geometry() },
            places: vec![TierPlace::Ram, TierPlace::new_file(&path).unwrap()],
            want_huge_pages: false,
            allocation: Allocation::AtOnce,
        }
    }

    #[test]
    fn tiers_open_in_order_and_leave_with_the_store() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let creation = spilling(&scratch, [4, 8, 0, 0]);
        create(&store, "node", creation.clone()).unwrap();
        assert_eq!(places(&store, "node").unwrap(), creation.places);
        let namespace = open_namespace(&store, "node").unwrap();
        let bytes: Vec<u64> = namespace.tiers.iter().map(|tier| tier.bytes()).collect();
        assert_eq!(bytes, [4 * 32 * 1024, 8 * 32 * 1024]);
        let in_memory = |tier: usize| namespace.tiers[tier].mappable().unwrap().in_memory;
        assert_eq!((in_memory(0), in_memory(1)), (true, false));
        let path = scratch.0.path().join("tier");
        assert!(path.exists());
        store.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn file_in_the_way_is_refused_and_what_was_made_is_removed() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let path = scratch.0.path().join("tier");
        std::fs::write(&path, b"mine").unwrap();
        let error = create(&store, "node", spilling(&scratch, [4, 8, 0, 0])).unwrap_err();
        assert_eq!((error.errno, &error.path), (libc::EEXIST, &path));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert!(!store.directory().contains(c"node.ram0"));
        assert!(!store.directory().contains(c"node.tiers"));
    }

    #[test]
    fn file_of_a_dead_creator_is_replaced() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let dead = spilling(&scratch, [4, 8, 0, 0]);
        tiers::write(store.directory(), c"node.tiers", &dead.places).unwrap();
        let TierPlace::File { path, identity } = &dead.places[1] else { panic!() };
        MediaFile::create(path, 1 << 20, *identity, Allocation::AsWritten).unwrap();
        create(&store, "node", spilling(&scratch, [4, 8, 0, 0])).unwrap();
        assert!(open_namespace(&store, "node").is_ok());
    }

    #[test]
    fn file_of_another_store_is_not_taken_for_ones_own() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let path = scratch.0.path().join("tier");
        create(&store, "node", spilling(&scratch, [4, 8, 0, 0])).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open_namespace(&store, "node").err().unwrap().errno, libc::ENOENT);
        MediaFile::create(&path, 8 * 32 * 1024, [7; 16], Allocation::AtOnce).unwrap();
        let error = open_namespace(&store, "node").err().unwrap();
        assert_eq!((error.errno, &error.path), (libc::EIO, &path));
        store.remove().unwrap();
        assert!(path.exists(), "it is not ours to remove");
    }

    #[test]
    fn huge_pages_are_used_where_the_system_grants_them() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        let huge = create_namespace(&store, "node", geometry(), true).unwrap();
        let namespace = open_namespace(&store, "node").unwrap();
        let link = std::fs::read_link(store.path().join("node.ram0"));
        assert_eq!(link.is_ok(), huge == HugePages::Mounted);
        let bytes = vec![7_u8; 100_000];
        // SAFETY: the vector is readable and not part of the device.
        let raw = unsafe { namespace.tiers[0].write(5, bytes.as_ptr(), bytes.len()) }.unwrap();
        assert_eq!(raw, checksum::raw(&bytes));
        store.remove().unwrap();
        assert!(!scratch.0.contains(c"cairn-0/job"));
    }

    #[test]
    fn placeholder_is_a_socket_that_cannot_be_reopened() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        create_namespace(&store, "node", geometry(), false).unwrap();
        let namespace = open_namespace(&store, "node").unwrap();
        let (first, inode) = namespace.placeholder(7).unwrap();
        let (second, same) = namespace.placeholder(7).unwrap();
        let (other, different) = namespace.placeholder(8).unwrap();
        assert_eq!(inode, same);
        assert_ne!(inode, different);
        let mut path = ShortPath::new();
        path.push(b"/proc/self/fd/");
        path.push_number(first as u64);
        let reopened = sys::openat(libc::AT_FDCWD, &path, libc::O_RDWR, 0);
        assert_eq!(reopened, Err(Errno(libc::ENXIO)));
        assert_eq!(sys::write(first, b"x"), Err(Errno(libc::EBADF)));
        [first, second, other].iter().for_each(|&open| sys::close(open).unwrap());
    }

    #[test]
    fn stand_in_directory_is_nameless_and_finds_nothing() {
        let scratch = Scratch::new();
        let store = store(&scratch);
        create_namespace(&store, "node", geometry(), false).unwrap();
        let namespace = open_namespace(&store, "node").unwrap();
        let (first, inode) = namespace.stand_in().unwrap();
        let (second, other) = namespace.stand_in().unwrap();
        assert_ne!(inode, other);
        let flags = libc::O_CREAT | libc::O_RDWR;
        assert_eq!(sys::openat(first, c"file", flags, 0o600), Err(Errno(libc::ENOENT)));
        assert!(std::fs::read_dir(store.path().join("void")).unwrap().next().is_none());
        [first, second].iter().for_each(|&open| sys::close(open).unwrap());
    }
}
