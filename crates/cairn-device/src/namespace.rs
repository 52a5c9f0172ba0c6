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

use cairn_core::{Credentials, Geometry, Microfs};

use crate::checksum;
use crate::descriptor::Descriptor;
use crate::device::Device;
use crate::directory::{Directory, StoreResult};
use crate::huge::{self, HugePages};
use crate::ram::RamDevice;
use crate::segment::{self, MetaSegment};
use crate::short_path::ShortPath;
use crate::store::{self, HANDLES, Store, VOID};
use crate::sys::{self, Errno, SysResult};

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

/// Creates the namespace `name` of `geometry` in `store`, with huge pages for its data if
/// `want_huge_pages` and the system grants them; the result says. `zero_block_checksum` is set here.
/// Errors: it exists (`EEXIST`); a tier other than the first is asked for (`EOPNOTSUPP`); no space.
pub fn create_namespace(
    store: &Store,
    name: &str,
    mut geometry: Geometry,
    want_huge_pages: bool,
) -> StoreResult<HugePages> {
    let directory = store.directory();
    let names = Names::new(directory, name)?;
    if geometry.tier_blocks[0] == 0 || geometry.tier_blocks[1..].iter().any(|&blocks| blocks != 0) {
        return Err(directory
            .error("create namespace", &names.meta, Errno(libc::EOPNOTSUPP))
            .advise("this build stores data in one RAM tier, tier 0"));
    }
    let _exclusive = directory.exclusive()?;
    if directory.contains(&names.meta) {
        return Err(directory.error("create namespace", &names.meta, Errno(libc::EEXIST)));
    }
    geometry.zero_block_checksum = checksum::zeros(u64::from(geometry.hugeblock_bytes));
    let bytes = u64::from(geometry.tier_blocks[0]) * u64::from(geometry.hugeblock_bytes);
    let huge_pages = match want_huge_pages {
        true => huge::provide(directory, bytes)?,
        false => HugePages::NotWanted,
    };
    create_data_segment(directory, &names, bytes, huge_pages == HugePages::Mounted)?;
    let owner = Credentials { uid: sys::geteuid(), gid: sys::getegid() };
    let made = MetaSegment::create(directory, &names.meta, geometry.segment_bytes(), |memory| {
        Microfs::format(memory, &geometry, checksum::crc32c, owner, sys::now())
    });
    if let Err(error) = made {
        remove_data_segment(directory, &names)?;
        return Err(error);
    }
    Ok(huge_pages)
}

/// Opens the namespace `name` of `store`. Errors: it does not exist (`ENOENT`), its files are not
/// what they should be, the core refuses its metadata.
pub fn open_namespace(store: &Store, name: &str) -> StoreResult<Namespace> {
    let directory = Directory::open(store.path())?.checked_private()?;
    let names = Names::new(&directory, name)?;
    let memory = MetaSegment::open(&directory, &names.meta)?;
    let meta_descriptor = memory.descriptor();
    let fs = Microfs::open(Box::new(memory), checksum::crc32c)
        .map_err(|error| directory.error("open namespace", &names.meta, error))?;
    let ram = open_ram(&directory, &names, fs.geometry())?;
    let tiers: Vec<Box<dyn Device>> = vec![Box::new(ram)];
    Ok(Namespace { fs, tiers, name: name.to_owned(), directory, meta_descriptor })
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
            ram: file(format!("{name}.ram0")),
            huge_ram: file(format!("huge/{name}.ram0")),
        })
    }
}

/// Creates `<ns>.ram0`, or with huge pages a link of that name to `huge/<ns>.ram0`. What a creator
/// that died has left is replaced: without a meta segment nobody uses it.
fn create_data_segment(
    directory: &Directory,
    names: &Names,
    bytes: u64,
    huge_pages: bool,
) -> StoreResult<()> {
    remove_data_segment(directory, names)?;
    if !huge_pages {
        return segment::create_file(directory, &names.ram, bytes).map(drop);
    }
    segment::create_file(directory, &names.huge_ram, bytes)?;
    sys::symlinkat(&names.huge_ram, directory.raw(), &names.ram)
        .map_err(|errno| directory.error("create link", &names.ram, errno))
}

fn remove_data_segment(directory: &Directory, names: &Names) -> StoreResult<()> {
    directory.remove_file(&names.ram)?;
    directory.remove_file(&names.huge_ram)
}

fn open_ram(directory: &Directory, names: &Names, geometry: &Geometry) -> StoreResult<RamDevice> {
    let mut target = [0_u8; 256];
    let huge_pages = match sys::readlinkat(directory.raw(), &names.ram, &mut target) {
        // Only to where we put it ourselves.
        Ok(length) => target[..length] == *names.huge_ram.to_bytes(),
        Err(_) => false,
    };
    let name = if huge_pages { &names.huge_ram } else { &names.ram };
    let (file, bytes) = segment::open_file(directory, name)?;
    let expected = u64::from(geometry.tier_blocks[0]) * u64::from(geometry.hugeblock_bytes);
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
            durable: false,
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
    fn second_tier_is_refused_with_advice() {
        let scratch = Scratch::new();
        let tiers = Geometry { tier_blocks: [128, 1, 0, 0], ..geometry() };
        let error = create_namespace(&store(&scratch), "node", tiers, false).unwrap_err();
        assert_eq!(error.errno, libc::EOPNOTSUPP);
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
