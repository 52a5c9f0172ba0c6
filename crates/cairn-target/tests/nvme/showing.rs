//! Pages of a namespace that programs have mapped: concurrent writes, stores and reads, and pages
//! that come and go.

use cairn_core::{Caller, Credentials, Error, Geometry, OpenOptions, ROOT, Timestamp};
use cairn_device::media::media_file::Allocation;
use cairn_device::store::namespace::{self, Creation, open_namespace};
use cairn_device::{Device, MediumKind, Namespace, Store, TierPlace};
use cairn_platform::sys;
use cairn_target::Limits;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::peer::{Peer, SUBSYSTEM};
use crate::proxy::{Harm, Proxy};

const PAGE: usize = 4096;
const BLOCKS: u32 = 64;

/// A store with one tier, opened by two processes.
struct Shared {
    store: Option<Store>,
    processes: [Namespace; 2],
    directory: std::path::PathBuf,
}

impl Shared {
    /// `None` if another target is tested: it has no room for a store.
    fn new() -> Option<Shared> {
        Some(Shared::at(Peer::limited(Limits::default())?.address))
    }

    /// A store whose target can be made to refuse writes.
    fn harmed() -> Option<(Shared, Proxy)> {
        let proxy = Proxy::calm(Peer::limited(Limits::default())?.address);
        Some((Shared::at(proxy.address), proxy))
    }

    fn at(address: SocketAddr) -> Shared {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-showing-{}-{number}", std::process::id());
        let directory = Path::new("/dev/shm").join(name);
        std::fs::create_dir(&directory).expect("makes");
        let path = format!("//{address}/{SUBSYSTEM}?nsid=2");
        let place = TierPlace::new(MediumKind::Remote, Path::new(&path)).expect("random");
        let creation = Creation {
            geometry: Geometry::new(b"/cairn", [BLOCKS, 0, 0, 0], 0),
            metadata_bytes: 0,
            places: vec![place],
            want_huge_pages: false,
            allocation: Allocation::AsWritten,
            may_overwrite: true,
        };
        let store = Store::create(&directory, "job").expect("is new");
        namespace::create(&store, "node", creation).expect("is made");
        let open = || open_namespace(&store, "node").expect("is there");
        let processes = [open(), open()];
        Shared { store: Some(store), processes, directory }
    }

    fn device(&self, process: usize) -> &dyn Device {
        self.processes[process].tiers[0].as_ref()
    }

    fn write(&self, process: usize, at: usize, bytes: &[u8]) {
        self.try_write(process, at, bytes).expect("is written");
    }

    fn try_write(&self, process: usize, at: usize, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the slice is readable.
        unsafe { self.device(process).write(at as u64, bytes.as_ptr(), bytes.len()) }.map(drop)
    }

    fn read(&self, process: usize, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        // SAFETY: the vector is writable and used here only.
        let read = unsafe {
            self.device(process).read(range.start as u64, bytes.as_mut_ptr(), bytes.len())
        };
        read.expect("is read");
        bytes
    }

    /// Maps pages like a program that may store to them.
    fn map(&self, process: usize, pages: Range<usize>) -> Mapped {
        self.mapped(process, pages, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn mapped(&self, process: usize, pages: Range<usize>, protection: i32) -> Mapped {
        let device = self.device(process);
        let may_store = protection & libc::PROT_WRITE != 0;
        device.show(pages.start as u64, pages.len(), may_store).expect("are shown");
        let at = device.mappable().expect("copies");
        assert!(at.copies);
        let place = at.offset + pages.start as u64;
        let start = sys::mmap(pages.len(), protection, libc::MAP_SHARED, at.descriptor, place);
        Mapped { start: start.expect("is mapped"), length: pages.len() }
    }

    fn evict_unmapped(&self, process: usize, mapped: Option<Range<u64>>) {
        self.try_put_away(process, mapped).expect("goes");
    }

    fn try_put_away(&self, process: usize, mapped: Option<Range<u64>>) -> Result<(), Error> {
        self.put_away_while(process, mapped, true)
    }

    fn put_away_while(
        &self,
        process: usize,
        mapped: Option<Range<u64>>,
        goes_on: bool,
    ) -> Result<(), Error> {
        self.device(process).evict_unmapped(&|| Ok(mapped.iter().cloned().collect()), &|| goes_on)
    }

    /// Bytes of memory that the shown pages take.
    fn memory(&self) -> u64 {
        let at = self.device(0).mappable().expect("copies");
        sys::fstat(at.descriptor).expect("is open").st_blocks as u64 * 512
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.store.take().map(Store::remove);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: inside the mapping, to which no reference exists.
        unsafe { core::ptr::copy(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    fn load(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: inside the mapping, to which no reference exists.
        unsafe { self.start.add(at).read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { sys::munmap(self.start, self.length) }.expect("is mapped");
    }
}

#[test]
fn write_leaves_what_was_stored_around_it_and_is_shown() {
    let Some(shared) = Shared::new() else { return };
    shared.write(0, 0, &[b'.'; 4 * PAGE]);
    let mapped = shared.map(0, PAGE..3 * PAGE);
    mapped.store(100, b"stored");
    assert_eq!(shared.read(1, PAGE + 99..PAGE + 107), b".stored.");
    // From a page that is not shown into one that is, and from a shown page into the next one.
    shared.write(1, PAGE - 3, b"over the border");
    shared.write(1, 3 * PAGE - 2, b"over");
    assert_eq!([mapped.load(0), mapped.load(2 * PAGE - 1)], [b'r', b'v']);
    shared.device(1).zero(PAGE as u64 + 104, 1).expect("is zeroed");
    let expected = |shared: &Shared, process| {
        assert_eq!(shared.read(process, PAGE - 4..PAGE + 13), b".over the border.");
        assert_eq!(shared.read(process, PAGE + 99..PAGE + 107), b".stor\0d.");
        assert_eq!(shared.read(process, 3 * PAGE - 3..3 * PAGE + 3), b".over.");
    };
    expected(&shared, 0);
    drop(mapped);
    shared.evict_unmapped(1, None);
    expected(&shared, 0);
    expected(&shared, 1);
}

#[test]
fn what_was_stored_reaches_the_namespace_when_it_is_written_back_or_goes() {
    let Some(shared) = Shared::new() else { return };
    let before = shared.memory();
    let mapped = shared.map(0, 0..1024 * 1024);
    assert!(shared.memory() >= before + (1 << 20));
    mapped.store(0, b"one");
    let sum = shared.device(1).checksum(0, PAGE).expect("is summed");
    mapped.store(8192, b"two");
    let still = || Some(0..64 * 1024);
    shared.evict_unmapped(1, still());
    assert!(shared.memory() < before + (1 << 20), "the rest went");
    assert_eq!(mapped.load(8192), b't', "what is mapped stays");
    shared.evict_unmapped(1, still());
    shared.evict_unmapped(1, None);
    assert_eq!(shared.device(0).checksum(0, PAGE), Ok(sum), "was summed with what was stored");
    assert_eq!(shared.read(0, 8192..8195), b"two");
    assert_eq!(shared.read(1, 0..4), b"one\0");
    let failing = || Err(Error::Io);
    drop((mapped, shared.map(1, 0..PAGE)));
    assert_eq!(shared.device(0).evict_unmapped(&failing, &|| true), Err(Error::Io));
    assert_eq!(shared.read(0, 0..4), b"one\0");
}

/// Mechanism: a tier without mapped blocks was taken for a tier without mapped files.
///
/// Consequence: pages shown late, of a file that had been emptied meanwhile, went unnoticed and
/// became part of the file that got their blocks.
///
/// Fix: files decide, not blocks.
#[test]
fn file_without_blocks_is_mapped_as_long_as_somebody_has_it_mapped() {
    let Some(shared) = Shared::new() else { return };
    let namespace = &shared.processes[0];
    let identity = cairn_platform::process::identity().expect("is known");
    let slot = namespace.fs.attach(identity).expect("has room").slot;
    let credentials = Credentials { uid: 0, gid: 0 };
    let caller = Caller { slot, credentials, groups: &[], now: Timestamp(1) };
    let options = OpenOptions { read: true, write: true, create: true, ..Default::default() };
    let opened = namespace.fs.open_file(&caller, ROOT, b"empty", options, 0o600).expect("opens");
    let mapping = namespace.fs.map_file(&caller, opened.handle, true).expect("is mapped");
    shared.device(0).show(0, PAGE, true).expect("is shown");
    let is_mapped = || shared.device(1).mappable().expect("a place").copies;
    shared.processes[1].evict_unmapped(&|| true).expect("goes");
    assert!(is_mapped());
    namespace.fs.end_mapping(slot, mapping, Timestamp(2)).expect("ends");
    namespace.fs.release(slot, mapping, Timestamp(2)).expect("ends");
    shared.processes[1].evict_unmapped(&|| true).expect("goes");
    assert!(!is_mapped());
}

/// One page is mapped for stores, the next one for reading.
#[test]
fn write_that_fails_into_pages_that_are_shown_is_everybodys_and_reaches_the_namespace_later() {
    let Some((shared, proxy)) = Shared::harmed() else { return };
    shared.write(0, 0, &[b'.'; 3 * PAGE]);
    let stored_to = shared.map(0, 0..PAGE);
    let read = shared.mapped(1, PAGE..2 * PAGE, libc::PROT_READ);
    stored_to.store(0, b"stored");
    proxy.arm(Harm::Refusal { first: 0 }, i64::MAX);
    let failed = Err(Error::Io);
    assert_eq!(shared.try_write(0, 3, b"mm"), failed);
    assert_eq!(shared.try_write(1, PAGE + 2, b"written"), failed);
    assert_eq!(shared.try_write(1, 2 * PAGE, b"not shown"), failed);
    let expected = |shared: &Shared| {
        for process in [0, 1] {
            assert_eq!(shared.read(process, 0..7), b"stommd.");
            assert_eq!(shared.read(process, PAGE + 1..PAGE + 10), b".written.");
            assert_eq!(shared.read(process, 2 * PAGE..2 * PAGE + 1), b".");
        }
    };
    expected(&shared);
    assert_eq!([stored_to.load(3), read.load(2)], [b'm', b'w']);
    // Only this memory holds the bytes, so it stays.
    drop((stored_to, read));
    let whole = 2 * PAGE;
    assert_eq!(shared.device(0).write_back(0, whole), failed);
    assert_eq!(shared.device(1).checksum(0, whole).map(drop), failed);
    assert_eq!(shared.try_put_away(1, None), failed);
    expected(&shared);
    proxy.disarm();
    shared.evict_unmapped(0, None);
    assert!(!shared.device(0).mappable().expect("a place").copies, "none are shown any more");
    expected(&shared);
}

/// Mechanism: the pages of a process that had died were written back, and no Flush followed.
/// Consequence: an `fsync` that found nothing mapped any more, and the record of that durable,
/// returned before the pages were durable. Fix: they are flushed before nothing counts as mapped.
#[test]
fn what_was_brought_back_is_flushed_before_nothing_counts_as_mapped() {
    let Some((shared, proxy)) = Shared::harmed() else { return };
    shared.map(0, 0..PAGE).store(0, b"stored");
    let is_mapped = || shared.device(0).mappable().expect("a place").copies;
    let before = proxy.flushes();
    shared.evict_unmapped(1, Some(PAGE as u64..2 * PAGE as u64));
    assert!(is_mapped());
    assert_eq!(proxy.flushes(), before, "it may be brought back again");
    shared.evict_unmapped(1, None);
    assert!(!is_mapped());
    assert!(proxy.flushes() > before);
}

/// Mechanism: putting pages away ended at the first page that could not be written back.
///
/// Consequence: no memory behind it was freed, and the work continued even when the agent was told
/// to end.
///
/// Fix: the work continues past such a page, reports the error at its end, and stops when the agent
/// ends.
#[test]
fn pages_that_cannot_be_brought_back_keep_no_others_and_nothing_goes_when_it_is_to_end() {
    const LARGE: usize = 1 << 20;
    let Some((shared, proxy)) = Shared::harmed() else { return };
    shared.map(0, 0..PAGE).store(0, b"stored");
    drop(shared.mapped(0, LARGE..2 * LARGE, libc::PROT_READ));
    let before = shared.memory();
    proxy.arm(Harm::Refusal { first: 0 }, i64::MAX);
    assert_eq!(shared.put_away_while(1, None, false), Ok(()));
    assert_eq!(shared.memory(), before);
    assert_eq!(shared.put_away_while(1, None, true), Err(Error::Io));
    assert!(shared.memory() <= before - LARGE as u64, "the others went");
    assert_eq!(shared.read(1, 0..6), b"stored");
    proxy.disarm();
    shared.evict_unmapped(1, None);
    assert_eq!(shared.read(0, 0..6), b"stored");
}

/// Mechanism: files without blocks of the tier appeared as empty ranges among the others, and a
/// search for a page then found nothing. Consequence: mapped pages were removed under their
/// mappings, and later stores were lost. Fix: empty ranges are left out.
#[test]
fn pages_of_several_mapped_files_stay() {
    const FILE: usize = 64 << 10;
    let Some(shared) = Shared::new() else { return };
    let mapped = shared.map(0, 0..2 * FILE);
    mapped.store(0, b"kept");
    for empty in [0, 1, 2, 3] {
        let files = [0..FILE as u64, FILE as u64..2 * FILE as u64];
        let ranges = || Ok([vec![0..0; empty], files.to_vec(), vec![0..0; 3 - empty]].concat());
        shared.device(1).evict_unmapped(&ranges, &|| true).expect("nothing goes");
        assert_eq!(mapped.load(0), b'k', "{empty}");
    }
    mapped.store(4, b" later");
    shared.device(0).write_back(0, PAGE).expect("is brought");
    drop(mapped);
    shared.evict_unmapped(1, None);
    assert_eq!(shared.read(0, 0..10), b"kept later");
}

/// Mechanism: a page that could not be written back also kept the unchanged pages behind it in the
/// same piece. Consequence: up to 1 MiB for each such page was not freed. Fix: they are freed.
#[test]
fn page_that_cannot_be_brought_back_keeps_no_unchanged_ones_beside_it() {
    const LARGE: usize = 1 << 20;
    let Some((shared, proxy)) = Shared::harmed() else { return };
    shared.map(0, 0..PAGE).store(0, b"stored");
    drop(shared.mapped(0, PAGE..LARGE, libc::PROT_READ));
    let before = shared.memory();
    proxy.arm(Harm::Refusal { first: 0 }, i64::MAX);
    assert_eq!(shared.try_put_away(1, None), Err(Error::Io));
    assert_eq!(shared.memory(), before - (LARGE - PAGE) as u64);
    assert_eq!(shared.read(1, 0..6), b"stored");
}

/// Mechanism: putting pages away tried all pages that could not be written back, and counted them
/// as gone. Consequence: one look took as long as hundreds of refusals, and behind enough of them
/// no memory was freed. Fix: it ends after some, and the next look begins there.
#[test]
fn pages_that_cannot_be_brought_back_are_tried_in_turn() {
    const LARGE: usize = 1 << 20;
    const REFUSED: usize = 40;
    let Some((shared, proxy)) = Shared::harmed() else { return };
    for page in 0..REFUSED {
        shared.map(0, 2 * page * PAGE..(2 * page + 1) * PAGE).store(0, &[b'a' + page as u8 % 26]);
    }
    drop(shared.mapped(0, LARGE..2 * LARGE, libc::PROT_READ));
    let before = shared.memory();
    proxy.arm(Harm::Refusal { first: 0 }, i64::MAX);
    let mut looks = 0;
    while shared.memory() > before - LARGE as u64 {
        assert_eq!(shared.try_put_away(1, None), Err(Error::Io));
        looks += 1;
    }
    assert!((2..=3).contains(&looks), "{looks} looks for {REFUSED} refusals");
    proxy.disarm();
    shared.evict_unmapped(1, None);
    for page in 0..REFUSED {
        assert_eq!(shared.read(0, 2 * page * PAGE..2 * page * PAGE + 1), [b'a' + page as u8 % 26]);
    }
    assert!(!shared.device(0).mappable().expect("a place").copies);
}

/// Mechanism: pages that could not be read kept the memory prepared for them, without a mark.
/// Consequence: nobody ever freed it. Fix: the caller that wanted to show them frees it.
#[test]
fn pages_that_cannot_be_shown_take_no_memory() {
    const LARGE: usize = 1 << 20;
    let Some((shared, proxy)) = Shared::harmed() else { return };
    drop(shared.map(0, 0..PAGE));
    let before = shared.memory();
    proxy.arm(Harm::RefusalToRead, i64::MAX);
    assert_eq!(shared.device(0).show(LARGE as u64, LARGE, true), Err(Error::Io));
    // Only the memory of their marks stays.
    assert!(shared.memory() <= before + PAGE as u64);
    proxy.disarm();
    assert_eq!(shared.map(0, LARGE..2 * LARGE).load(0), 0);
}

#[test]
fn range_outside_of_the_tier_is_not_shown() {
    let Some(shared) = Shared::new() else { return };
    let device = shared.device(0);
    for (offset, length) in
        [(device.bytes(), PAGE), (device.bytes() - 4096, 2 * PAGE), (u64::MAX, PAGE)]
    {
        let shown = device.show(offset, length, false);
        assert_eq!(shown, Err(Error::Corrupt { what: "range outside its tier" }));
    }
}

/// Each page has bytes of three threads: two write and read, one maps, stores and unmaps, and pages
/// are put away all the while.
#[test]
fn writers_readers_and_stores_meet_in_pages_that_come_and_go() {
    const PAGES: usize = 8;
    const ROUNDS: usize = 400;
    let Some(shared) = &Shared::new() else { return };
    let mapped: &Mutex<Vec<Range<u64>>> = &Mutex::default();
    let is_done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let writes = |process: usize| {
            move || {
                for round in 0..ROUNDS {
                    let at = round * 5 % PAGES * PAGE + process * 1024;
                    let bytes = [(round % 251) as u8; 1024];
                    shared.write(process, at, &bytes);
                    assert!(shared.read(1 - process, at..at + 1024) == bytes, "{process} {round}");
                }
            }
        };
        let stores = || {
            for round in 0..ROUNDS {
                let (first, at) = (round * 3 % PAGES * PAGE, 2048);
                let bytes = [(round % 241) as u8; 2048];
                let range = first as u64..(first + PAGE) as u64;
                mapped.lock().expect("nobody fails").push(range);
                let view = shared.map(round % 2, first..first + PAGE);
                view.store(at, &bytes);
                let in_file = || shared.read(round / 2 % 2, first + at..first + PAGE);
                assert!(in_file() == bytes, "mapped: {round}");
                drop(view);
                mapped.lock().expect("nobody fails").clear();
                assert!(in_file() == bytes, "unmapped: {round}");
            }
        };
        let puts_away = || {
            while !is_done.load(Ordering::Relaxed) {
                let ranges = || Ok(mapped.lock().expect("nobody fails").clone());
                shared.device(1).evict_unmapped(&ranges, &|| true).expect("goes");
            }
        };
        let threads = [scope.spawn(writes(0)), scope.spawn(writes(1)), scope.spawn(stores)];
        scope.spawn(puts_away);
        let ends = threads.map(|thread| thread.join());
        is_done.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "one has said why");
    });
}

#[test]
fn reader_of_pages_that_come_and_go_sees_what_they_had() {
    const BYTES: usize = 1 << 20;
    let Some(shared) = &Shared::new() else { return };
    let content = vec![b'x'; BYTES];
    shared.write(0, 0, &content);
    let is_done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                drop(shared.map(0, 0..BYTES));
                shared.evict_unmapped(1, None);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            assert!(shared.read(0, 0..BYTES) == content);
        }
    });
}

/// Mechanism: a read began again whenever any page of the tier had gone meanwhile, and gave up in
/// the end. Consequence: while the agent put away a large mapping, reads of everything on the tier
/// failed. Fix: only the parts in shown pages are read again, with a turn at them if that fails.
#[test]
fn reads_succeed_while_other_pages_go_all_the_time() {
    const BYTES: usize = 1 << 20;
    let Some((shared, proxy)) = Shared::harmed() else { return };
    let content = vec![b'x'; 2 * BYTES];
    shared.write(0, 0, &content);
    let _shown = shared.map(0, 0..BYTES / 2);
    let descriptor = shared.device(0).mappable().expect("copies").descriptor;
    let (protection, shared_with_all) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let area = sys::mmap(PAGE, protection, shared_with_all, descriptor, 0).expect("is mapped");
    // SAFETY: the word is aligned and in a page that stays mapped; it is only used as an atomic. It
    // counts when pages go (`cairn_device::media::transit`).
    let gone: &'static AtomicU64 = unsafe { AtomicU64::from_ptr(area.cast::<u64>().add(11)) };
    proxy.before_reads(move || {
        gone.fetch_add(1, Ordering::SeqCst);
    });
    assert!(shared.read(1, BYTES..2 * BYTES) == content[BYTES..], "not shown");
    assert!(shared.read(1, 0..BYTES) == content[..BYTES], "shown in part");
}
