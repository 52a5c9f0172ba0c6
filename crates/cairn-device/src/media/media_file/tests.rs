//! Creates, refuses and removes a tier's file; its contents on file systems with and without direct
//! I/O.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use cairn_platform::sys::c_path;

use crate::directory::tests::Scratch;
use crate::media::media_file::pages::transfer_all;
use crate::media::medium::loop_device::LoopDevice;
use crate::media::staging::STAGING_BYTES;

const BYTES: u64 = 4 << 20;
const IDENTITY: Identity = *b"0123456789abcdef";

thread_local! {
    /// Number of times that this thread had the kernel flush a file.
    pub(crate) static FLUSHES: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// Size of a device.
const DEVICE_BYTES: u64 = 64 << 20;

/// A directory on the disk that `cargo test` builds on, or in memory, whose file may be mapped; or
/// a device over a file there. It has a transit area that nobody serves.
pub(crate) struct Place {
    pub path: PathBuf,
    device: Option<LoopDevice>,
    is_mapped: bool,
    store: Scratch,
}

impl Place {
    pub(crate) fn in_memory() -> Place {
        let store = Place::store();
        Place { path: store.0.path().to_owned(), device: None, is_mapped: false, store }
    }

    pub(crate) fn on_disk() -> Place {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cairn-tier-{}-{count}", sys::getpid()));
        std::fs::create_dir(&path).unwrap();
        Place { path, device: None, is_mapped: false, store: Place::store() }
    }

    fn store() -> Scratch {
        let store = Scratch::new();
        Transit::create(&store.0, c"transit").unwrap();
        store
    }

    pub(crate) fn both() -> [Place; 2] {
        [Place::on_disk(), Place::in_memory()]
    }

    fn mapped(mut self) -> Place {
        self.is_mapped = true;
        self
    }

    /// Returns both directories, then both with mapped files, and two block devices where there are
    /// any.
    pub(crate) fn all() -> impl Iterator<Item = Place> {
        let mapped = Place::both().map(Place::mapped);
        let devices = [512, PAGE as u32].into_iter().filter_map(Place::on_device);
        Place::both().into_iter().chain(mapped).chain(devices)
    }

    /// Returns a place on a device with sectors of that many bytes; `None` where there are none.
    pub(crate) fn on_device(sector_bytes: u32) -> Option<Place> {
        let mut place = Place::on_disk();
        let device = LoopDevice::with_sectors(&place.path, DEVICE_BYTES, sector_bytes);
        place.device = Some(device?);
        Some(place)
    }

    pub(crate) fn tier(&self) -> PathBuf {
        match &self.device {
            Some(device) => device.path().to_owned(),
            None => self.path.join("tier"),
        }
    }

    pub(crate) fn file(&self, bytes: u64) -> MediaFile {
        let path = self.tier();
        let made = match &self.device {
            Some(_) => MediaFile::create_on_device(&path, bytes, IDENTITY, false),
            None => MediaFile::create(&path, bytes, IDENTITY, Allocation::AtOnce),
        };
        made.unwrap();
        self.open()
    }

    /// Opens what `file` made, as another process would.
    pub(crate) fn open(&self) -> MediaFile {
        let file = MediaFile::open(&self.tier()).unwrap();
        if self.is_mapped {
            return file.mapped().unwrap();
        }
        file.with_transit(Transit::open(&self.store.0, c"transit").unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[test]
fn new_file_is_private_allocated_and_opens_with_its_identity() {
    for place in Place::both() {
        let file = place.file(BYTES);
        assert_eq!((Media::bytes(&file), file.identity()), (BYTES, &IDENTITY));
        let stat = sys::fstat(file.ordinary()).unwrap();
        assert_eq!(stat.st_mode & 0o7777, 0o600);
        assert!(stat.st_blocks as u64 * 512 >= BYTES + PAGE as u64, "{}", stat.st_blocks);
        let mut page = [1; PAGE];
        file.read(BYTES - PAGE as u64, &mut page).unwrap();
        assert_eq!(page, [0; PAGE]);
    }
}

#[test]
fn whole_pages_bypass_the_cache_where_the_file_system_lets_them() {
    let place = Place::on_disk();
    let file = place.file(BYTES);
    let state = sys::statfs(&c_path(&place.path).unwrap()).unwrap();
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    if matches!(state.f_type, EXT4 | XFS) {
        assert!(file.direct());
    }
}

#[test]
fn what_exists_is_refused_named_and_left_alone() {
    let place = Place::on_disk();
    let path = place.path.join("tier");
    for (content, advice) in [(None, "another store"), (Some("mine"), "not a tier of Cairn")] {
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => drop(place.file(BYTES)),
        }
        let before = std::fs::read(&path).unwrap();
        let refused = MediaFile::create(&path, BYTES, [1; 16], Allocation::AtOnce).unwrap_err();
        assert_eq!((refused.errno, &refused.path), (libc::EEXIST, &path));
        assert!(refused.advice.contains(advice), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn file_that_is_no_tier_is_not_opened() {
    let place = Place::on_disk();
    let path = place.path.join("tier");
    let refused = |advice: &str| {
        let error = MediaFile::open(&path).unwrap_err();
        assert_eq!(error.path, path);
        assert!(error.to_string().contains(advice), "{error}");
    };
    refused("No such file");
    drop(place.file(BYTES));
    let change = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
    change(0o640).unwrap();
    refused("others could have written it");
    change(0o600).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(BYTES + 2 * PAGE as u64).unwrap();
    refused("no label");
    file.set_len(BYTES + 10).unwrap();
    refused("not a number of pages");
    file.set_len(BYTES).unwrap();
    file.set_len(BYTES + PAGE as u64).unwrap();
    put(
        &Descriptor::from_raw(dup(&file)),
        BYTES,
        &label::encode(&Label { bytes: BYTES + 1, identity: IDENTITY, ..Label::default() }),
    )
    .unwrap();
    refused("size was changed");
    std::fs::rename(&path, place.path.join("other")).unwrap();
    symlink("other", &path).unwrap();
    refused("symbolic links");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("directory");
}

#[test]
fn file_is_waited_for_while_its_last_user_ends() {
    let place = Place::in_memory();
    let path = place.path.join("tier");
    drop(place.file(BYTES));
    let user = MediaFile::open_alone(&path).unwrap();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| MediaFile::open_alone(&path).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        drop(user);
        opened.join().unwrap().unwrap();
    });
}

#[test]
fn damaged_label_is_found_and_written_again() {
    let place = Place::on_disk();
    let path = place.path.join("tier");
    drop(place.file(BYTES));
    let before = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    put(
        &Descriptor::from_raw(dup(&file)),
        BYTES,
        &label::encode(&Label { bytes: BYTES + 1, identity: IDENTITY, ..Label::default() }),
    )
    .unwrap();
    let (mut file, wrong) = MediaFile::open_to_check(&path, Access::ReadWrite).unwrap();
    assert_eq!(wrong, Some(Wrong::Damaged));
    file.write_label(Label { bytes: BYTES, identity: IDENTITY, ..Label::default() }).unwrap();
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(MediaFile::open(&path).unwrap().identity(), &IDENTITY);
}

#[test]
fn file_that_is_opened_to_read_cannot_be_written() {
    let place = Place::on_disk();
    let path = place.path.join("tier");
    drop(place.file(BYTES));
    let (mut file, wrong) = MediaFile::open_to_check(&path, Access::Read).unwrap();
    assert_eq!((wrong, file.identity()), (None, &IDENTITY));
    let mut page = [1; PAGE];
    file.read(0, &mut page).unwrap();
    assert_eq!(page, [0; PAGE]);
    assert_eq!(Media::write(&file, 0, &[1; PAGE]), Err(Error::Io));
    assert_eq!(
        file.write_label(Label { bytes: BYTES, identity: [1; 16], ..Label::default() }),
        Err(Error::Io)
    );
    assert_eq!(MediaFile::open(&path).unwrap_err().errno, libc::EWOULDBLOCK);
}

fn dup(file: &std::fs::File) -> i32 {
    use std::os::fd::AsRawFd;
    sys::dup(file.as_raw_fd()).unwrap()
}

#[test]
fn file_that_does_not_fit_is_refused_and_leaves_nothing() {
    for place in Place::both() {
        let path = place.path.join("tier");
        let state = sys::statfs(&c_path(&place.path).unwrap()).unwrap();
        let too_much = (state.f_blocks + 1024) * state.f_bsize as u64 / PAGE as u64 * PAGE as u64;
        let error = MediaFile::create(&path, too_much, IDENTITY, Allocation::AtOnce).unwrap_err();
        assert_eq!((error.errno, &error.path), (libc::ENOSPC, &path));
        assert!(!path.exists());
        for bytes in [0, 100] {
            let error = MediaFile::create(&path, bytes, IDENTITY, Allocation::AtOnce).unwrap_err();
            assert_eq!(error.errno, libc::EINVAL);
        }
    }
}

#[test]
fn only_the_tier_that_is_meant_is_removed() {
    let place = Place::on_disk();
    let path = place.path.join("tier");
    drop(place.file(BYTES));
    let own = |identity| MediaFile::open_own(&path, identity, libc::LOCK_SH);
    assert!(own(&[1; 16]).unwrap().is_none());
    own(&IDENTITY).unwrap().unwrap().remove_from(&path).unwrap();
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    assert!(own(&IDENTITY).is_err());
}

#[test]
fn allocation_without_the_kernels_help_writes_every_byte() {
    let place = Place::on_disk();
    let path = c_path(&place.path.join("zeros")).unwrap();
    let flags = libc::O_CREAT | libc::O_RDWR;
    let file = Descriptor::open(libc::AT_FDCWD, &path, flags, 0o600).unwrap();
    let bytes = STAGING_BYTES as u64 + PAGE as u64;
    put_zeros(&file, 0..bytes).unwrap();
    sys::fsync(file.raw()).unwrap();
    let stat = sys::fstat(file.raw()).unwrap();
    assert_eq!(stat.st_size as u64, bytes);
    assert!(stat.st_blocks as u64 * 512 >= bytes);
}

#[test]
fn blocks_are_stored_and_flushed_and_ranges_checked() {
    for place in Place::all() {
        let file = place.file(BYTES);
        let length = (STAGING_BYTES + 3 * PAGE) as u32;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        let at = PAGE as u64;
        file.write(at, &bytes).unwrap();
        file.flush().unwrap();
        let mut back = vec![0; bytes.len()];
        place.open().read(at, &mut back).unwrap();
        assert_eq!(back, bytes);
        let outside = Err(Error::Corrupt { what: "range outside its tier" });
        assert_eq!(file.write(BYTES - PAGE as u64, &bytes), outside);
        assert_eq!(file.read(u64::MAX - PAGE as u64 + 1, &mut back), outside);
        assert_eq!(file.write(1, &bytes), Err(Error::Invalid));
        assert_eq!(file.read(0, &mut back[1..]), Err(Error::Invalid));
    }
}

#[test]
fn short_transfers_go_on_at_a_page_and_interrupted_ones_are_repeated() {
    let mut answers =
        vec![Ok(3 * PAGE), Ok(PAGE + 512), Err(Errno(libc::EINTR)), Ok(2 * PAGE)].into_iter();
    let mut asked = Vec::new();
    let done = transfer_all(6 * PAGE, |done| {
        asked.push(done / PAGE);
        answers.next().unwrap()
    });
    assert_eq!((done, asked), (Ok(()), vec![0, 3, 4, 4]));
    assert_eq!(transfer_all(PAGE, |_| Ok(512)), Err(Errno(libc::EIO)));
    assert_eq!(transfer_all(10, |_| Ok(0)), Err(Errno(libc::EIO)));
    assert_eq!(transfer_all(10, |_| Err(Errno(libc::ENOSPC))), Err(Errno(libc::ENOSPC)));
}

#[test]
fn limit_on_file_sizes_is_an_error_and_never_a_signal() {
    let place = Place::on_disk();
    let file = place.file(BYTES);
    // SAFETY: the child writes through its own buffer and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let limit = libc::rlimit { rlim_cur: PAGE as u64, rlim_max: PAGE as u64 };
        // SAFETY: `limit` is read for the call; it binds the child only.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        let within = file.write(0, &[1; PAGE]).is_ok();
        let beyond = file.write(PAGE as u64, &[1; PAGE]) == Err(Error::FileTooLarge);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!within) + 2 * i32::from(!beyond)) };
    }
    let mut status = 0;
    // SAFETY: `status` receives one int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

#[test]
fn ordinary_file_is_mapped_and_left_to_the_kernel_to_flush() {
    for place in Place::both() {
        let file = place.file(BYTES);
        assert_eq!(file.is_synchronous(), None);
        let file = file.mapped().unwrap();
        assert!(file.mapping.is_some() && !file.direct() && !file.reads_ahead());
        assert_eq!(file.is_synchronous(), Some(false));
        file.write(0, &[7; PAGE]).unwrap();
        file.flush().unwrap();
        drop(file);
        let mut page = [0; PAGE];
        place.open().read(0, &mut page).unwrap();
        assert_eq!(page, [7; PAGE]);
    }
}

#[test]
fn file_that_lacks_some_of_its_space_is_mapped_when_it_has_taken_that() {
    for place in Place::both() {
        let path = place.path.join("tier");
        MediaFile::create(&path, BYTES, IDENTITY, Allocation::AsWritten).unwrap();
        let open = || MediaFile::open(&path).unwrap().mapped().unwrap();
        let file = open();
        assert!(file.mapping.is_none());
        assert_eq!(file.is_synchronous(), Some(false));
        file.write(5 * PAGE as u64, &[7; PAGE]).unwrap();
        file.flush().unwrap();
        file.take_missing_space().unwrap();
        let file = open();
        assert!(file.mapping.is_some());
        let mut pages = [1; 2 * PAGE];
        file.read(4 * PAGE as u64, &mut pages).unwrap();
        assert!(pages[..PAGE] == [0; PAGE] && pages[PAGE..] == [7; PAGE]);
    }
}

#[test]
fn file_for_which_there_are_no_addresses_is_not_mapped() {
    let place = Place::in_memory();
    let file = place.file(BYTES);
    // SAFETY: the child maps or fails to, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let limit = libc::rlimit { rlim_cur: PAGE as u64, rlim_max: PAGE as u64 };
        // SAFETY: `limit` is read for the call; it binds the child only.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
        let refused = file.mapped().is_err_and(|errno| errno.0 == libc::ENOMEM);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: `status` receives one int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}
