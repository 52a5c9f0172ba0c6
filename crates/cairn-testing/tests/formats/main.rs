//! Images of all released media formats. This build opens each of them, and writes the newest
//! format.
//!
//! An image holds names of every kind, a log after a snapshot, and a file that was open when the
//! node lost its memory. `CAIRN_WRITE_IMAGES=1` writes the image of the current format again. An
//! image of an older format never changes. A change of the format raises its version and adds an
//! image here.

mod by_hand;
mod sparse;

use cairn_core::recover;
use cairn_core::{
    Attributes, Caller, Credentials, Error, ExtendedUpdate, InodeId, Media, Microfs, OpenOptions,
    Position, ROOT, RenameMode, Superblock, TimeUpdate, Timestamp, Truncation, recover_read_only,
};
use cairn_device::Workspace;
use cairn_testing::driver::Process;
use cairn_testing::durable::{Setting, Tiers, attach, memory};
use cairn_testing::faulty::{ByteMedia, Image};
use cairn_testing::portrait::portrait;
use cairn_testing::tier::CHECKSUM;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Media formats. Format 1 has one tier, format 2 has further tiers. Format 3 has either, and
/// extended attributes. Format 4 adds absent files. Format 5 adds blocks that replace others.
const VERSIONS: [usize; 5] = [1, 2, 3, 4, 5];
/// Format that this build writes.
const NEWEST: usize = 5;
const FIRST_WITH_EXTENDED: usize = 3;
const FIRST_WITH_ABSENT: usize = 4;
const FIRST_WITH_REPLACED: usize = 5;
/// Unit of allocation.
const BLOCK_BYTES: u32 = 4096;
/// Returns the first lines of the image's file.
fn about(version: usize) -> String {
    format!(
        "Media of Cairn, media format {version}. Sectors that are not zeros: offset, length, bytes.
Made by: CAIRN_WRITE_IMAGES=1 cargo test -p cairn-testing --test formats"
    )
}
/// All operations of a log except strides.
const LOG_OPERATIONS: std::ops::RangeInclusive<u16> = 1..=15;
/// All operations of a snapshot with files, directories and symbolic links.
const SNAPSHOT_OPERATIONS: [u16; 4] = [7, 16, 17, 18];
/// From format 3 on, log and snapshot have this operation.
const EXTENDED: u16 = 20;
/// From format 4 on, the log has these operations.
const ABSENT: [u16; 2] = [21, 22];
/// From format 5 on, the log has this operation.
const REPLACED: u16 = 23;
/// Size of an absent file, bytes.
const ABSENT_BYTES: u64 = 5_000;
const READ: OpenOptions = OpenOptions {
    read: true,
    write: false,
    append: false,
    create: false,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: true,
    path_only: false,
    ..OpenOptions::NONE
};
const SOMEBODY: Credentials = Credentials { uid: 5, gid: 6 };
const WRITE: OpenOptions = OpenOptions { write: true, create: true, ..READ };

/// Returns the content written to the file `salt`.
fn content(salt: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3 + at * at / 7) as u8 ^ salt).collect()
}

/// A namespace in use.
struct Store {
    process: Process,
    media: Arc<Image>,
}

impl Store {
    /// Recovers the namespace on `image`.
    fn recovered(image: &Image) -> Store {
        let media = Arc::new(image.clone());
        let superblock = Superblock::read(media.as_ref(), CHECKSUM).expect("it has a superblock");
        let memory = memory(&superblock);
        recover(media.as_ref(), &memory, CHECKSUM).expect("it can be recovered");
        let process = attach(memory, media.clone(), &superblock, 1);
        Store { process: process.expect("there is a slot"), media }
    }

    fn fs(&self) -> &Microfs {
        &self.process.fs
    }

    /// Writes `bytes` at offset `at` and leaves the file open.
    fn write(&self, path: &[u8], at: u64, bytes: &[u8]) -> (InodeId, cairn_core::HandleId) {
        let caller = self.process.caller();
        let opened = self.fs().open_file(&caller, ROOT, path, WRITE, 0o640).unwrap();
        let written = self.process.write(&caller, opened.handle, Position::At(at), bytes).unwrap();
        assert_eq!(written, (at, bytes.len() as u64));
        (opened.inode, opened.handle)
    }

    /// Writes `bytes` at offset `at`, seals the blocks and closes the file.
    fn put(&self, path: &[u8], at: u64, bytes: &[u8]) -> InodeId {
        let (inode, handle) = self.write(path, at, bytes);
        assert!(self.process.seal(inode).unwrap());
        self.process.close(handle).unwrap();
        inode
    }

    fn read(&self, path: &[u8]) -> (Attributes, Vec<u8>) {
        let caller = self.process.caller();
        let opened = self.fs().open_file(&caller, ROOT, path, READ, 0).unwrap();
        self.process.verify_blocks(opened.inode, opened.handle).unwrap();
        let attributes = self.fs().attributes(opened.inode).unwrap();
        let read = self.process.read(&caller, opened.handle, Position::At(0), attributes.size);
        self.process.close(opened.handle).unwrap();
        (attributes, read.unwrap().1)
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) {
        self.fs().rename(&self.process.caller(), (ROOT, from), (ROOT, to), mode).unwrap();
    }
}

/// Size of the media, bytes: of one tier, or of two with metadata apart from data.
fn media_bytes(tiers: Tiers) -> u64 {
    if tiers == Tiers::One { 2 << 20 } else { 6 << 20 }
}

/// Tiers of the kept image of a format.
fn tiers_of(version: usize) -> Tiers {
    if version == 1 { Tiers::One } else { Tiers::Apart }
}

/// Returns media as this build writes them: operations of every kind, a snapshot, and again
/// operations of every kind.
fn written_today(tiers: Tiers) -> Image {
    let image = Image::filled(media_bytes(tiers), 0);
    Setting { tiers, ..Setting::simple() }.make_on(&image);
    let store = Store::recovered(&image);
    operations_of_every_kind(&store, b"before", 1);
    store.fs().write_snapshot().unwrap();
    operations_of_every_kind(&store, b"after", 2);
    // The log must fill more than one block.
    let file = store.fs().resolve(&store.process.caller(), ROOT, b"after/kept", true).unwrap();
    for time in 5_941..=6_000 {
        let (caller, modified) = (store.process.caller(), TimeUpdate::At(Timestamp(time)));
        store.fs().set_times(&caller, file, TimeUpdate::Omit, modified).unwrap();
    }
    // This file is open when the memory is lost; its first block was being overwritten.
    let (_, handle) = store.write(b"open", 0, &content(9, 4_200));
    store.fs().sync().unwrap();
    let caller = store.process.caller();
    store.process.write(&caller, handle, Position::At(100), &content(8, 50)).unwrap();
    store.fs().sync().unwrap();
    store.media.as_ref().clone()
}

/// Makes a directory `under` with files, and logs every operation.
fn operations_of_every_kind(store: &Store, under: &[u8], salt: u8) {
    let fs = store.fs();
    let path = |name: &str| [under, b"/", name.as_bytes()].concat();
    let caller = store.process.caller();
    fs.make_directory(&caller, ROOT, under, 0o777).unwrap();
    let somebody = Caller { credentials: SOMEBODY, ..caller };
    fs.make_directory(&somebody, ROOT, &path("theirs"), 0o711).unwrap();
    let kept = store.put(&path("kept"), 0, &content(salt, 4_300));
    store.put(&path("overwritten"), 0, &content(salt, 4_500));
    store.put(&path("overwritten"), 4_000, &content(salt + 100, 200));
    store.put(&path("redirected"), 0, &content(salt, 9_000));
    fs.begin_image().unwrap();
    store.put(&path("redirected"), 4_000, &content(salt + 70, 300));
    fs.end_image().unwrap();
    let (cut, handle) = store.write(&path("cut"), 0, &content(salt, 4_500));
    assert_eq!(fs.truncate(&caller, cut, 4_200), Ok(Truncation::Done));
    assert!(store.process.seal(cut).unwrap());
    store.process.close(handle).unwrap();
    store.put(&path("holes"), 20_000, &content(salt, 100));
    store.put(&path("old name"), 0, &content(salt + 10, 30));
    store.rename(&path("old name"), &path("new name"), RenameMode::Replace);
    store.put(&path("replacing"), 0, &content(salt + 20, 40));
    store.put(&path("replaced"), 0, &content(salt + 30, 50));
    store.rename(&path("replacing"), &path("replaced"), RenameMode::Replace);
    store.put(&path("one"), 0, &content(salt + 40, 60));
    store.put(&path("two"), 0, &content(salt + 50, 70));
    store.rename(&path("one"), &path("two"), RenameMode::Exchange);
    for name in ["removed", "evicted"] {
        store.put(&path(name), 0, &content(salt, 80));
    }
    fs.unlink(&caller, ROOT, &path("removed")).unwrap();
    fs.evict(&caller, ROOT, &path("evicted")).unwrap();
    store.process.reclaim().unwrap();
    fs.link(&caller, (ROOT, &path("kept")), (ROOT, &path("second name")), false).unwrap();
    fs.symlink(&caller, &[b"../".as_slice(), &path("kept")].concat(), ROOT, &path("link")).unwrap();
    let caller = store.process.caller();
    fs.set_mode(&caller, kept, 0o604).unwrap();
    fs.set_owner(&caller, kept, Some(SOMEBODY.uid), Some(SOMEBODY.gid)).unwrap();
    let [accessed, modified] = [7_000, 6_000].map(|time| TimeUpdate::At(Timestamp(time)));
    fs.set_times(&caller, kept, accessed, modified).unwrap();
    let crc32c = CHECKSUM(0, &content(salt + 60, ABSENT_BYTES as usize));
    for name in ["absent", "brought"] {
        let options = OpenOptions { read: false, ..WRITE };
        let handle = fs.open_file(&caller, ROOT, &path(name), options, 0o640).unwrap().handle;
        fs.make_absent(&caller, handle, ABSENT_BYTES, crc32c).unwrap();
        store.process.close(handle).unwrap();
    }
    let brought = fs.resolve(&caller, ROOT, &path("brought"), false).unwrap();
    let handle = fs.open_absent(&caller, brought).unwrap();
    let bytes = content(salt + 60, ABSENT_BYTES as usize);
    let begun = store.process.begin_write(&caller, handle, Position::At(0), &bytes);
    let mut write = begun.unwrap();
    store.process.transfer(&mut write).unwrap();
    assert!(store.process.commit(&caller, &mut write).unwrap());
    assert!(fs.end_absence(&caller, handle).unwrap());
    store.process.close(handle).unwrap();
    let caller = store.process.caller();
    let theirs = fs.resolve(&caller, ROOT, &path("theirs"), false).unwrap();
    let set = |inode, name: &[u8], length: usize| {
        let (value, update) = (content(salt, length), ExtendedUpdate::default());
        fs.set_extended(&caller, inode, name, &value, update).unwrap();
    };
    set(kept, b"user.second", 1_000);
    set(kept, b"user.removed", 10);
    set(kept, b"user.first", 0);
    fs.remove_extended(&caller, kept, b"user.removed").unwrap();
    set(theirs, b"user.of a directory", 40);
    let version = fs.attributes(kept).unwrap().version;
    fs.mark_drained(kept, version, caller.now).unwrap();
    fs.sync().unwrap();
}

/// Returns the content of the files below `under` that `operations_of_every_kind` leaves on media
/// of a format.
fn files(version: usize, salt: u8) -> Vec<(&'static str, Vec<u8>)> {
    let mut overwritten = content(salt, 4_500);
    overwritten[4_000..4_200].copy_from_slice(&content(salt + 100, 200));
    let mut holes = vec![0; 20_000];
    holes.extend(content(salt, 100));
    let mut redirected = content(salt, 9_000);
    redirected[4_000..4_300].copy_from_slice(&content(salt + 70, 300));
    let redirected = (version >= FIRST_WITH_REPLACED).then_some(("redirected", redirected));
    let brought = ("brought", content(salt + 60, ABSENT_BYTES as usize));
    let others = vec![
        ("cut", content(salt, 4_500)[..4_200].to_vec()),
        ("holes", holes),
        ("kept", content(salt, 4_300)),
        ("new name", content(salt + 10, 30)),
        ("one", content(salt + 50, 70)),
        ("overwritten", overwritten),
        ("replaced", content(salt + 20, 40)),
        ("second name", content(salt, 4_300)),
        ("two", content(salt + 40, 60)),
    ];
    let brought = (version >= FIRST_WITH_ABSENT).then_some(brought);
    others.into_iter().chain(brought).chain(redirected).collect()
}

/// Returns the checksums of a file's blocks; `None` for holes.
fn checksums(content: &[u8]) -> Vec<Option<u32>> {
    let block = |bytes: &[u8]| {
        let mut block = bytes.to_vec();
        block.resize(BLOCK_BYTES as usize, 0);
        block.iter().any(|&byte| byte != 0).then(|| CHECKSUM(0, &block))
    };
    content.chunks(BLOCK_BYTES as usize).map(block).collect()
}

/// Returns the extended attributes of `name`.
fn extended(name: &str, salt: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    let with_lengths: &[(&[u8], usize)] = match name {
        "kept" | "second name" => &[(b"user.first", 0), (b"user.second", 1_000)],
        "theirs" => &[(b"user.of a directory", 40)],
        _ => &[],
    };
    with_lengths.iter().map(|(name, length)| (name.to_vec(), content(salt, *length))).collect()
}

/// Checks that everything written exists, and nothing else.
fn expect_everything(image: &Image, version: usize) {
    let store = Store::recovered(image);
    assert_eq!(store.fs().geometry().mount, cairn_testing::path::MOUNT);
    let seen = portrait(store.fs()).unwrap();
    let mut names = vec![String::new(), "/open".to_owned()];
    for (under, salt) in [("before", 1), ("after", 2)] {
        names.extend([format!("/{under}"), format!("/{under}/link"), format!("/{under}/theirs")]);
        if version >= FIRST_WITH_ABSENT {
            names.push(format!("/{under}/absent"));
            let absent = seen.tree[format!("/{under}/absent").as_bytes()].attributes;
            let crc32c = absent.absence.expect("its data are elsewhere").crc32c;
            assert_eq!(crc32c, CHECKSUM(0, &content(salt + 60, ABSENT_BYTES as usize)));
            assert_eq!((absent.size, absent.is_drained()), (ABSENT_BYTES, true));
        }
        for (name, content) in files(version, salt) {
            let path = format!("{under}/{name}");
            let (attributes, found) = store.read(path.as_bytes());
            let stored = &seen.tree[format!("/{path}").as_bytes()].checksums;
            let (used, rest) = stored.split_at(content.len().div_ceil(BLOCK_BYTES as usize));
            assert!(found == content, "content of {path}");
            assert_eq!(used, checksums(&content), "{path}");
            assert!(rest.iter().all(Option::is_none), "{path}");
            assert_eq!((attributes.unclean, attributes.opens), (false, 1), "{path}");
            names.push(format!("/{path}"));
        }
        let entry = |name: &str| &seen.tree[format!("/{under}/{name}").as_bytes()];
        for name in ["kept", "second name", "theirs", "cut"] {
            let has_any = version >= FIRST_WITH_EXTENDED;
            let expected = if has_any { extended(name, salt) } else { Vec::new() };
            assert_eq!(entry(name).extended, expected, "{name}");
        }
        let kept = entry("kept").attributes;
        assert_eq!((kept.mode, kept.links), (0o100_604, 2));
        assert_eq!((kept.uid, kept.gid), (SOMEBODY.uid, SOMEBODY.gid));
        assert_eq!((kept.accessed, kept.modified), (Timestamp(7_000), Timestamp(6_000)));
        // These times come from a clock that starts at 1.
        assert!(kept.born < kept.changed && kept.changed < kept.modified, "{kept:?}");
        assert_ne!(kept.born, Timestamp(0));
        let theirs = entry("theirs").attributes;
        assert_eq!((theirs.mode, theirs.links), (0o040_711, 2));
        assert_eq!((theirs.uid, theirs.gid), (SOMEBODY.uid, SOMEBODY.gid));
        assert_eq!(kept.drained_version, kept.version);
        assert_eq!(entry("cut").attributes.mode, 0o100_640);
        assert_eq!(entry("link").target, format!("../{under}/kept").into_bytes());
    }
    names.sort();
    let found = seen.tree.keys().map(|path| String::from_utf8_lossy(path).into_owned());
    assert_eq!(found.collect::<Vec<_>>(), names);
    let (open, found) = store.read(b"open");
    let mut expected = content(9, 4_200);
    expected[100..150].copy_from_slice(&content(8, 50));
    assert!(open.unclean && found == expected);
    assert!(seen.tree[&b"/open"[..]].checksums.iter().all(Option::is_none), "none is trusted");
}

/// Checks that the image matches docs/FORMAT.md.
fn expect_described_format(image: &Image, version: usize, tiers: Tiers) {
    let superblock = by_hand::Superblock::read(image);
    assert_eq!(superblock.version(), version as u64);
    let (bytes, inodes, further) = match tiers {
        Tiers::One => (media_bytes(tiers), 1024, [0; 3]),
        _ => (superblock.data(), 1029, [768, 5, 6]),
    };
    assert_eq!(superblock.further(), [further, [0; 3], [0; 3]].concat());
    let shape = [0x1234_5678, 0x9abc_def0, bytes, 4096, inodes];
    let blocks = (bytes - superblock.data()) / 4096;
    assert_eq!(
        (&superblock.shape()[..5], &superblock.shape()[5..]),
        (&shape[..], &[blocks, 1][..])
    );
    assert_eq!(superblock.mount(), cairn_testing::path::MOUNT);
    let [older, newer] = by_hand::snapshots(image, &superblock);
    assert_eq!((older.number, newer.number, older.epoch, newer.epoch), (1, 2, 2, 2));
    assert_eq!(older.position % 508, 0, "an epoch begins with a block");
    assert!(older.lsn < newer.lsn && older.position < newer.position);
    let extended = (version >= FIRST_WITH_EXTENDED).then_some(EXTENDED);
    let absent = ABSENT.into_iter().filter(|_| version >= FIRST_WITH_ABSENT);
    let replaced = (version >= FIRST_WITH_REPLACED).then_some(REPLACED);
    let in_snapshot: Vec<u16> = newer.operations.keys().copied().collect();
    assert_eq!(in_snapshot, SNAPSHOT_OPERATIONS.into_iter().chain(extended).collect::<Vec<_>>());
    for snapshot in [&older, &newer] {
        let operations = by_hand::log(image, &superblock, snapshot);
        let kinds = LOG_OPERATIONS.chain(extended).chain(absent.clone()).chain(replaced);
        assert!(operations.into_keys().eq(kinds));
    }
    let mut block = vec![0; BLOCK_BYTES as usize];
    image.read(superblock.data(), &mut block).unwrap();
    let mut table = [0; 4096];
    image.read(superblock.checksums(), &mut table).unwrap();
    // Block 0 was written once, as a whole.
    assert_eq!(table[..4], CHECKSUM(0, &block).to_le_bytes());
}

/// Returns the kept image of a media format. If the environment asks for it, writes the image
/// first.
fn kept(version: usize) -> Image {
    static IMAGES: LazyLock<[Image; 5]> = LazyLock::new(|| VERSIONS.map(read_image));
    IMAGES[version - 1].clone()
}

fn read_image(version: usize) -> Image {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let path = directory.join(format!("media-{version}.image"));
    if version == NEWEST && std::env::var_os("CAIRN_WRITE_IMAGES").is_some() {
        let image = written_today(tiers_of(version));
        std::fs::write(&path, sparse::pack(&image, &about(version))).unwrap();
    }
    sparse::unpack(&std::fs::read(&path).expect("the image is kept beside this file"))
}

#[test]
fn image_of_each_media_format_is_recovered_with_names_contents_and_checksums() {
    VERSIONS.iter().for_each(|&version| expect_everything(&kept(version), version));
}

#[test]
fn image_of_each_media_format_is_what_the_page_on_formats_says() {
    for version in VERSIONS {
        expect_described_format(&kept(version), version, tiers_of(version));
    }
}

#[test]
fn media_written_today_are_of_the_newest_format() {
    for tiers in [Tiers::One, Tiers::Apart] {
        let image = written_today(tiers);
        expect_described_format(&image, NEWEST, tiers);
        expect_everything(&image, NEWEST);
    }
}

#[test]
fn write_of_pieces_stands_in_the_log_as_the_page_on_formats_says() {
    const STRIDES: u16 = 19;
    const WRITE_NUMBER: u16 = 9;
    const FIRST: u64 = 2;
    const STRIDE: u64 = 5;
    const BLOCK: usize = BLOCK_BYTES as usize;
    let image = Image::filled(media_bytes(Tiers::One), 0);
    Setting::simple().make_on(&image);
    let store = Store::recovered(&image);
    // Two pieces of two blocks, and one of one block.
    let pieces = [(0, 2), (1, 2), (2, 1)]
        .map(|(index, blocks)| (FIRST + index * STRIDE, content(index as u8, blocks * BLOCK)));
    let (shared, handle) =
        store.write(b"shared", pieces[0].0 * u64::from(BLOCK_BYTES), &pieces[0].1);
    let mut expected = Vec::new();
    for (at, bytes) in &pieces {
        let (caller, at) = (store.process.caller(), at * u64::from(BLOCK_BYTES));
        if !expected.is_empty() {
            store.process.write(&caller, handle, Position::At(at), bytes).unwrap();
        }
        expected.resize(at as usize, 0);
        expected.extend(bytes);
    }
    store.fs().sync().unwrap();
    let superblock = by_hand::Superblock::read(&store.media);
    let [_, newest] = by_hand::snapshots(&store.media, &superblock);
    let mut operations = by_hand::log(&store.media, &superblock, &newest);
    let parameters = operations.remove(&STRIDES).expect("a record of pieces");
    let run = 5 << 36;
    let said = [FIRST, 5, STRIDE, 2].map(|blocks| blocks * u64::from(BLOCK_BYTES));
    assert_eq!(parameters, [u64::from(shared.0), said[0], said[1], said[2], run, said[3]]);
    assert!(!operations.contains_key(&WRITE_NUMBER), "no other record has any of it");
    assert!(Store::recovered(&store.media).read(b"shared").1 == expected);
}

#[test]
fn recovery_that_only_looks_changes_no_byte() {
    let image = kept(1);
    let before = image.to_vec();
    let superblock = Superblock::read(&image, CHECKSUM).unwrap();
    let found = recover_read_only(&image, &memory(&superblock), CHECKSUM).unwrap();
    assert_eq!((found.snapshot, found.fell_back), (2, false));
    assert!(image.to_vec() == before);
}

#[test]
fn extended_attributes_on_media_of_an_older_format_are_refused() {
    for version in VERSIONS {
        let store = Store::recovered(&kept(version));
        let (fs, caller) = (store.fs(), store.process.caller());
        let file = fs.resolve(&caller, ROOT, b"after/kept", true).unwrap();
        let update = ExtendedUpdate::default();
        let set = fs.set_extended(&caller, file, b"user.a", b"value", update);
        let is_old = version < FIRST_WITH_EXTENDED;
        assert_eq!(set, if is_old { Err(Error::NotSupported) } else { Ok(()) });
        let listed = fs.all_extended(file).unwrap().iter().count();
        assert_eq!(listed, if is_old { 0 } else { 3 });
    }
}

#[test]
fn image_of_a_namespace_on_media_of_an_older_format_is_refused() {
    for version in VERSIONS {
        let store = Store::recovered(&kept(version));
        let begun = store.fs().begin_image();
        let is_old = version < FIRST_WITH_REPLACED;
        assert_eq!(begun, if is_old { Err(Error::NotSupported) } else { Ok(1) });
    }
}

#[test]
fn absent_files_on_media_of_an_older_format_are_refused() {
    for version in VERSIONS {
        let store = Store::recovered(&kept(version));
        let (fs, caller) = (store.fs(), store.process.caller());
        let options = OpenOptions { read: false, ..WRITE };
        let handle = fs.open_file(&caller, ROOT, b"new", options, 0o640).unwrap().handle;
        let made = fs.make_absent(&caller, handle, 5, 6);
        let is_old = version < FIRST_WITH_ABSENT;
        assert_eq!(made, if is_old { Err(Error::NotSupported) } else { Ok(()) });
    }
}

#[test]
fn media_of_a_newer_format_are_refused_and_left_alone() {
    let image = kept(1);
    let mut block = vec![0; 4096];
    image.read(0, &mut block).unwrap();
    block[8] = NEWEST as u8 + 1;
    for copy in [0, 4096] {
        image.write_bytes(copy, &block).unwrap();
    }
    let before = image.to_vec();
    let error = Superblock::read(&image, CHECKSUM).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 6, .. }), "{error:?}");
    let memory = Arc::new(Workspace::new(512).unwrap());
    assert_eq!(recover(&image, &memory, CHECKSUM).map(drop), Err(error));
    assert!(image.to_vec() == before);
}
