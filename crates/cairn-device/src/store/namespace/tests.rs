//! Tests of namespaces: created, opened, refused.

use super::*;
use crate::directory::tests::Scratch;
use crate::media::medium::loop_device::LoopDevice;
use crate::media::medium::{self, Contents, MediumKind};

fn geometry() -> Geometry {
    Geometry { inode_capacity: 1000, ..Geometry::new(b"/cairn", [128, 0, 0, 0], 0) }
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
    assert_eq!(count, 5);
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
    let file = || TierPlace::new(MediumKind::File, &scratch.0.path().join("tier")).unwrap();
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
        metadata_bytes: 0,
        places: vec![TierPlace::Ram, TierPlace::new(MediumKind::File, &path).unwrap()],
        want_huge_pages: false,
        allocation: Allocation::AtOnce,
        may_overwrite: false,
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
    let TierPlace::Medium { path, identity, .. } = &dead.places[1] else { panic!() };
    MediaFile::create(path, 1 << 20, *identity, Allocation::AsWritten).unwrap();
    create(&store, "node", spilling(&scratch, [4, 8, 0, 0])).unwrap();
    assert!(open_namespace(&store, "node").is_ok());
}

#[test]
fn tiers_of_a_dead_creator_stay_as_long_as_nobody_can_look_at_the_first() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    let away = TierPlace::new(MediumKind::Remote, Path::new("//127.0.0.1:1/nqn.x?nsid=1")).unwrap();
    let dead = spilling(&scratch, [4, 8, 0, 0]).places.remove(1);
    let TierPlace::Medium { path, identity, .. } = &dead else { panic!() };
    MediaFile::create(path, 1 << 20, *identity, Allocation::AsWritten).unwrap();
    tiers::write(store.directory(), c"node.tiers", &[away, dead.clone()]).unwrap();
    assert_eq!(remove_unfinished(&store, "node").unwrap_err().errno, libc::ECONNREFUSED);
    assert!(store.directory().contains(c"node.tiers") && path.exists());
    std::fs::remove_file(store.path().join("node.tiers")).unwrap();
    tiers::write(store.directory(), c"node.tiers", std::slice::from_ref(&dead)).unwrap();
    remove_unfinished(&store, "node").unwrap();
    assert!(!store.directory().contains(c"node.tiers") && !path.exists());
}

#[test]
fn device_of_a_dead_creator_is_made_again_and_blank_when_the_store_is_gone() {
    let Some(device) = LoopDevice::new(&std::env::temp_dir(), 8 << 20) else { return };
    let scratch = Scratch::new();
    let store = store(&scratch);
    let tier = || TierPlace::new(MediumKind::Block, device.path()).unwrap();
    let dead = tier();
    tiers::write(store.directory(), c"node.tiers", &[TierPlace::Ram, dead.clone()]).unwrap();
    dead.make(1 << 20, Allocation::AtOnce, false).unwrap();
    let creation =
        Creation { places: vec![TierPlace::Ram, tier()], ..spilling(&scratch, [4, 8, 0, 0]) };
    create(&store, "node", creation).unwrap();
    assert!(open_namespace(&store, "node").is_ok());
    store.remove().unwrap();
    assert_eq!(medium::contents(device.path(), false).unwrap(), Contents::Nothing);
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

/// Returns a durable namespace on the files `meta` and `tier` beside the store, and in memory; a
/// place other than the first needs blocks to be included.
fn durable(scratch: &Scratch, tier_blocks: [u32; TIERS_MAX], metadata_bytes: u64) -> Creation {
    let file = |name| TierPlace::new(MediumKind::File, &scratch.0.path().join(name)).unwrap();
    let places = [file("meta"), TierPlace::Ram, file("tier")];
    let is_there = |tier: &usize| tier_blocks[*tier] > 0 || *tier == 0;
    let there: Vec<usize> = (0..3).filter(is_there).collect();
    let mut geometry = geometry();
    geometry.durability = Some(Durability::Sync);
    geometry.tier_blocks = [0; TIERS_MAX];
    there.iter().enumerate().for_each(|(to, &from)| geometry.tier_blocks[to] = tier_blocks[from]);
    Creation {
        geometry,
        metadata_bytes,
        places: there.iter().map(|&tier| places[tier].clone()).collect(),
        want_huge_pages: false,
        allocation: Allocation::AsWritten,
        may_overwrite: false,
    }
}

/// Returns the same creation on what exists already.
fn kept(creation: &Creation) -> Creation {
    let places = creation.places.iter().map(|place| place.as_kept().unwrap()).collect();
    Creation { places, ..creation.clone() }
}

/// Makes a directory and flushes it to the media.
fn leave_a_mark(namespace: &Namespace) {
    let caller = |slot| cairn_core::Caller {
        slot,
        credentials: Credentials { uid: 0, gid: 0 },
        groups: &[],
        now: sys::now(),
    };
    let slot = namespace.fs.attach(cairn_platform::process::identity().unwrap()).unwrap().slot;
    let made = namespace.fs.make_directory(&caller(slot), cairn_core::ROOT, b"mark", 0o755);
    made.unwrap();
    namespace.fs.sync().unwrap();
}

fn has_mark(namespace: &Namespace) -> bool {
    namespace.fs.usage().unwrap().inodes == 2
}

#[test]
fn durable_namespace_of_any_tiers_is_made_again_from_its_files() {
    for (tier_blocks, metadata_bytes) in [
        ([200, 0, 0, 0], 0),
        ([200, 8, 0, 0], 0),
        ([200, 0, 8, 0], 0),
        ([200, 8, 8, 0], 0),
        ([0, 8, 0, 0], 4 << 20),
        ([0, 0, 8, 0], 4 << 20),
        ([0, 8, 8, 0], 4 << 20),
    ] {
        let scratch = Scratch::new();
        let first = store(&scratch);
        let mut creation = durable(&scratch, tier_blocks, metadata_bytes);
        let in_memory = creation.places.iter().position(|place| *place == TierPlace::Ram);
        // Files are never divided among memory nodes.
        creation.geometry.placement.nodes = if in_memory.is_none() { 0b11 } else { 0 };
        create(&first, "node", creation.clone()).unwrap();
        let namespace = open_namespace(&first, "node").unwrap();
        assert_eq!(namespace.tiers.len(), creation.places.len(), "{tier_blocks:?}");
        let placement = Placement { tier: in_memory.unwrap_or(0) as u8, ..Placement::default() };
        assert_eq!(namespace.fs.geometry().placement, placement, "{tier_blocks:?}");
        let bytes: Vec<u64> = namespace.tiers.iter().map(|tier| tier.bytes()).collect();
        assert_eq!(bytes[0] == 0, metadata_bytes > 0, "{tier_blocks:?}");
        assert!(bytes[1..].iter().all(|&bytes| bytes == 8 * 32 * 1024), "{tier_blocks:?}");
        leave_a_mark(&namespace);
        drop(namespace);
        std::fs::remove_dir_all(first.path()).unwrap();
        let second = store(&scratch);
        create(&second, "node", kept(&creation)).unwrap();
        assert!(has_mark(&open_namespace(&second, "node").unwrap()), "{tier_blocks:?}");
        second.remove().unwrap();
        assert!(std::fs::read_dir(scratch.0.path()).unwrap().next().is_none());
    }
}

/// Mechanism: the removal of a store recognised a tier by its identity alone, which the tier keeps
/// when another store recovers it.
///
/// Consequence: it emptied the tier under the store that had recovered it.
///
/// Fix: the epoch is compared, too, under the tier's lock.
#[test]
fn tiers_that_another_store_has_recovered_are_not_emptied_with_the_store_that_had_them() {
    for (tier_blocks, metadata_bytes) in [([200, 0, 8, 0], 0), ([0, 0, 8, 0], 4 << 20)] {
        let scratch = Scratch::new();
        let first = store(&scratch);
        let creation = durable(&scratch, tier_blocks, metadata_bytes);
        create(&first, "node", creation.clone()).unwrap();
        leave_a_mark(&open_namespace(&first, "node").unwrap());
        let second = Store::create(scratch.0.path(), "second").unwrap();
        create(&second, "node", kept(&creation)).unwrap();
        let path = first.path().to_owned();
        let left = first.remove().unwrap();
        let named: Vec<_> = left.iter().map(|left| (left.error.errno, &left.error.path)).collect();
        let meta = scratch.0.path().join("meta");
        assert_eq!(named, [(libc::ESTALE, &meta)], "{tier_blocks:?}");
        assert!(!path.exists(), "the store is removed all the same");
        assert!(has_mark(&open_namespace(&second, "node").unwrap()), "{tier_blocks:?}");
        second.remove().unwrap();
        assert!(std::fs::read_dir(scratch.0.path()).unwrap().next().is_none());
    }
}

#[test]
fn tiers_that_are_locked_are_recovered_by_nobody_until_they_are_gone_with_their_store() {
    let scratch = Scratch::new();
    let first = store(&scratch);
    let creation = durable(&scratch, [200, 0, 8, 0], 0);
    create(&first, "node", creation.clone()).unwrap();
    let locks = first.lock_tiers();
    let [meta, ..] = &creation.places[..] else { panic!() };
    assert_eq!(meta.as_kept().unwrap_err().errno, libc::EWOULDBLOCK);
    assert_eq!(first.remove_locked(locks), Ok(Vec::new()));
    assert!(std::fs::read_dir(scratch.0.path()).unwrap().next().is_none());
    assert_eq!(meta.as_kept().unwrap_err().errno, libc::ENOENT);
}

/// What a dead creator left is not certainly its own any more once somebody has it.
#[test]
fn tier_without_a_meta_segment_is_not_emptied_while_another_store_has_it() {
    let scratch = Scratch::new();
    let first = store(&scratch);
    let creation = durable(&scratch, [200, 0, 0, 0], 0);
    create(&first, "node", creation.clone()).unwrap();
    std::fs::remove_file(first.path().join("node.meta")).unwrap();
    let second = Store::create(scratch.0.path(), "second").unwrap();
    create(&second, "node", kept(&creation)).unwrap();
    let namespace = open_namespace(&second, "node").unwrap();
    let left = first.remove().unwrap();
    let errors: Vec<_> = left.iter().map(|left| left.error.errno).collect();
    assert_eq!(errors, [libc::EWOULDBLOCK]);
    leave_a_mark(&namespace);
    assert!(has_mark(&open_namespace(&second, "node").unwrap()));
}

#[test]
fn metadata_of_other_tiers_are_refused_and_everything_stays() {
    let scratch = Scratch::new();
    let first = store(&scratch);
    let creation = durable(&scratch, [0, 0, 8, 0], 4 << 20);
    create(&first, "node", creation.clone()).unwrap();
    leave_a_mark(&open_namespace(&first, "node").unwrap());
    std::fs::remove_dir_all(first.path()).unwrap();
    let second = store(&scratch);
    let tier = scratch.0.path().join("tier");
    let aside = scratch.0.path().join("aside");
    std::fs::rename(&tier, &aside).unwrap();
    let error = create(&second, "node", creation.clone()).unwrap_err();
    assert_eq!((error.errno, &error.path), (libc::ENOENT, &tier));
    MediaFile::create(&tier, 8 * 32 * 1024, [7; 16], Allocation::AsWritten).unwrap();
    let error = create(&second, "node", kept(&creation)).unwrap_err();
    assert_eq!((error.errno, &error.path), (libc::EINVAL, &scratch.0.path().join("meta")));
    std::fs::rename(&aside, &tier).unwrap();
    create(&second, "node", kept(&creation)).unwrap();
    assert!(has_mark(&open_namespace(&second, "node").unwrap()));
}

#[test]
fn too_few_bytes_for_metadata_are_refused_and_nothing_is_left() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    let mut creation = durable(&scratch, [0, 0, 8, 0], 4096);
    let error = create(&store, "node", creation.clone()).unwrap_err();
    assert_eq!(error.errno, libc::ENOSPC);
    assert!(!scratch.0.contains(c"meta") && !scratch.0.contains(c"tier"));
    creation.metadata_bytes = creation.least_metadata_bytes();
    create(&store, "node", creation).unwrap();
}

/// Mechanism: the creation of a namespace removes what a dead creator left, by the list of its
/// tiers. A creator that recovers a namespace from files lists those, too.
///
/// Consequence: after it was killed, the next creation removed the files with all their data and
/// began with empty ones.
///
/// Fix: files that hold a namespace, and those of its further tiers, stay.
#[test]
fn creator_dies_while_it_recovers_then_the_next_one_recovers() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    for tier_blocks in [[200, 0, 0, 0], [200, 0, 8, 0]] {
        let creation = durable(&scratch, tier_blocks, 0);
        create(&store, "node", creation.clone()).unwrap();
        leave_a_mark(&open_namespace(&store, "node").unwrap());
        // The list and the files exist; the meta segment, which is made last, does not.
        std::fs::remove_file(store.path().join("node.meta")).unwrap();
        create(&store, "node", kept(&creation)).unwrap();
        assert!(has_mark(&open_namespace(&store, "node").unwrap()), "{tier_blocks:?}");
        std::fs::remove_file(store.path().join("node.meta")).unwrap();
        remove_tiers(store.directory(), &Names::new(store.directory(), "node").unwrap(), true)
            .unwrap();
    }
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
    assert!(std::fs::read_dir(store.path().join("handles")).unwrap().next().is_none());
    [first, second].iter().for_each(|&open| sys::close(open).unwrap());
}

#[test]
fn image_of_two_namespaces_shows_the_cut_and_keeps_no_more_memory_than_the_next_begins_with() {
    use cairn_core::{ImageState, OpenOptions, ProcessIdentity, ROOT};
    const WRITE: OpenOptions = OpenOptions { write: true, create: true, ..OpenOptions::NONE };
    let scratch = Scratch::new();
    let store = store(&scratch);
    let names = ["node", "rank-1"];
    for name in names {
        create_namespace(&store, name, geometry(), false).unwrap();
    }
    let spaces = names.map(|name| open_namespace(&store, name).unwrap());
    let create = |space: &Namespace, path: &[u8]| {
        let identity = ProcessIdentity { pid: 1, pid_namespace: 1, start_time: 1 };
        let slot = space.fs.attach(identity).unwrap().slot;
        let credentials = Credentials { uid: sys::geteuid(), gid: sys::getegid() };
        let caller = cairn_core::Caller { slot, credentials, groups: &[], now: sys::now() };
        space.fs.open_file(&caller, ROOT, path, WRITE, 0o600).unwrap();
        caller
    };
    let shadow_blocks =
        |name: &str| std::fs::metadata(store.path().join(format!("{name}.image"))).unwrap();
    let blocks = |name: &str| std::os::unix::fs::MetadataExt::blocks(&shadow_blocks(name));
    let caller = create(&spaces[0], b"before");
    create(&spaces[1], b"before");
    assert_eq!(open_image(&store, &spaces[0]).err().unwrap().errno, libc::ESTALE);
    assert_eq!(names.map(blocks), [0, 0], "nothing is taken before");
    let begin_images = || {
        let rendezvous = &cairn_core::Rendezvous::new(2);
        std::thread::scope(|scope| {
            let begin = |space: &Namespace| space.fs.begin_image_together(rendezvous);
            let begun = spaces.each_ref().map(|space| scope.spawn(move || begin(space)));
            begun.map(|begun| begun.join().unwrap())
        })
    };
    assert_eq!(begin_images(), [Ok(1), Ok(1)]);
    assert_eq!(begin_images(), [Err(Error::Busy), Err(Error::Busy)]);
    assert_eq!(spaces[0].fs.image(), ImageState::Held(1), "the first one stays");
    let images = spaces.each_ref().map(|space| open_image(&store, space).unwrap());
    for (space, image) in spaces.iter().zip(&images) {
        for index in 0..200 {
            create(space, format!("{index}").as_bytes());
        }
        let found = |path: &[u8]| image.fs.resolve(&caller, ROOT, path, false).is_ok();
        assert!(found(b"before") && !found(b"0") && !found(b"199"));
        assert_eq!(image.fs.require_image(), Ok(()));
        image.fs.check().unwrap();
    }
    let held = names.map(blocks);
    for (space, image) in spaces.iter().zip(&images) {
        space.fs.end_image().unwrap();
        assert_eq!(image.fs.require_image(), Err(Error::ImageLost));
        space.fs.check().unwrap();
    }
    let kept = names.map(blocks);
    assert!(kept.iter().zip(held).all(|(&kept, held)| kept <= held), "{kept:?} of {held:?}");
    assert!(kept.iter().all(|blocks| blocks * 512 <= 5 << 19), "{kept:?}");
    assert_eq!(begin_images(), [Ok(2), Ok(2)]);
}
