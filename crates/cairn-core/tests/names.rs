//! Names, links, renames and listings of one namespace, through the public interface.

use cairn_core::{
    Caller, Credentials, Error, Geometry, HeapMemory, InodeId, Microfs, OpenOptions,
    ProcessIdentity, ROOT, RenameMode, Timestamp,
};

fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |sum, &byte| sum.rotate_left(5) ^ u32::from(byte))
}

fn namespace() -> (Microfs, Caller) {
    let mut geometry = Geometry::new(b"/cairn", [1024, 0, 0, 0], 0);
    geometry.inode_capacity = 200_000;
    let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
    let owner = Credentials { uid: 1000, gid: 1000 };
    Microfs::format(&memory, &geometry, checksum, owner, Timestamp(1)).expect("format");
    let fs = Microfs::open(Box::new(memory), checksum).expect("open");
    let identity = ProcessIdentity { pid: 7, pid_namespace: 1, start_time: 9 };
    let slot = fs.attach(identity).expect("attach").slot;
    (fs, Caller { slot, credentials: owner, groups: &[], now: Timestamp(2) })
}

fn create(fs: &Microfs, caller: &Caller, path: &str) -> Result<InodeId, Error> {
    let options = OpenOptions { write: true, create: true, exclusive: true, ..Default::default() };
    let opened = fs.open_file(caller, ROOT, path.as_bytes(), options, 0o644)?;
    fs.release(caller.slot, opened.handle, caller.now)?;
    Ok(opened.inode)
}

fn list(fs: &Microfs, caller: &Caller, directory: InodeId) -> Vec<String> {
    let mut names = Vec::new();
    fs.list(caller, directory, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })
    .expect("list");
    names
}

#[test]
fn many_names_in_one_directory_are_found_listed_and_removed() {
    let (fs, caller) = namespace();
    let names: Vec<String> = (0..50_000).map(|index| format!("file.{index}.restart")).collect();
    for name in &names {
        create(&fs, &caller, name).expect("create");
    }
    fs.check().expect("consistent after creating");
    for name in &names {
        fs.stat(&caller, ROOT, name.as_bytes(), true).expect("stat");
    }
    let mut listed = list(&fs, &caller, ROOT);
    let mut expected = names.clone();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for name in &names {
        fs.unlink(&caller, ROOT, name.as_bytes()).expect("unlink");
        assert_eq!(fs.stat(&caller, ROOT, name.as_bytes(), true), Err(Error::NotFound));
    }
    let report = fs.check().expect("consistent after removing");
    assert_eq!((report.names, report.inodes), (0, 1));
}

#[test]
fn long_names_survive_and_longer_ones_are_refused() {
    let (fs, caller) = namespace();
    for length in [1, 47, 48, 49, 104, 105, 160, 254, 255] {
        let name = "n".repeat(length);
        create(&fs, &caller, &name).expect("create");
        assert!(list(&fs, &caller, ROOT).contains(&name));
    }
    assert_eq!(create(&fs, &caller, &"n".repeat(256)), Err(Error::NameTooLong));
}

#[test]
fn rename_replaces_exchanges_and_refuses_cycles() {
    let (fs, caller) = namespace();
    let first = create(&fs, &caller, "a").expect("create");
    create(&fs, &caller, "b").expect("create");
    fs.make_directory(&caller, ROOT, b"d", 0o755).expect("mkdir");
    fs.make_directory(&caller, ROOT, b"d/e", 0o755).expect("mkdir");
    let rename = |from: &str, to: &str, mode| {
        fs.rename(&caller, (ROOT, from.as_bytes()), (ROOT, to.as_bytes()), mode)
    };
    assert_eq!(rename("a", "b", RenameMode::NoReplace), Err(Error::Exists));
    assert_eq!(rename("d", "d/e/f", RenameMode::Replace), Err(Error::Invalid));
    assert_eq!(rename("a", "d", RenameMode::Replace), Err(Error::IsDirectory));
    assert_eq!(rename("d", "a", RenameMode::Replace), Err(Error::NotDirectory));
    rename("a", "b", RenameMode::Replace).expect("replace");
    assert_eq!(fs.resolve(&caller, ROOT, b"b", true), Ok(first));
    assert_eq!(fs.resolve(&caller, ROOT, b"a", true), Err(Error::NotFound));
    rename("b", "d/e", RenameMode::Exchange).expect("exchange");
    assert_eq!(fs.resolve(&caller, ROOT, b"d/e", true), Ok(first));
    assert_eq!(fs.path_of(fs.resolve(&caller, ROOT, b"b", true).expect("b")), Ok(b"b".to_vec()));
    fs.check().expect("consistent");
}

#[test]
fn symbolic_links_are_followed_within_and_reported_when_they_leave() {
    let (fs, caller) = namespace();
    fs.make_directory(&caller, ROOT, b"d", 0o755).expect("mkdir");
    let file = create(&fs, &caller, "d/file").expect("create");
    let link = |target: &str, path: &str| {
        fs.symlink(&caller, target.as_bytes(), ROOT, path.as_bytes()).expect("symlink");
    };
    link("d", "relative");
    link("/cairn/d/file", "absolute");
    link("../d/../relative/file", "d/twisted");
    link("/etc", "outside");
    link("loop", "loop");
    link("../../tmp", "d/above");
    for path in ["relative/file", "absolute", "d/twisted", "relative/../d/./file", "./d//file"] {
        assert_eq!(fs.resolve(&caller, ROOT, path.as_bytes(), true), Ok(file), "{path}");
    }
    assert_eq!(fs.resolve(&caller, ROOT, b"loop", true), Err(Error::SymlinkLoop));
    for (path, leads_to) in [
        ("outside/passwd", "/etc/passwd"),
        ("../etc/passwd", "/etc/passwd"),
        ("d/above/x", "/tmp/x"),
        ("d/../../x/y", "/x/y"),
    ] {
        assert_eq!(fs.stat(&caller, ROOT, path.as_bytes(), true), Err(Error::Escapes), "{path}");
        let outside = fs.escape_path(&caller, ROOT, path.as_bytes(), true).expect("escape");
        assert_eq!(String::from_utf8_lossy(&outside), leads_to);
    }
}

#[test]
fn a_directory_of_another_user_refuses_what_its_mode_refuses() {
    let (fs, caller) = namespace();
    fs.make_directory(&caller, ROOT, b"private", 0o700).expect("mkdir");
    create(&fs, &caller, "private/file").expect("create");
    let stranger = Caller { credentials: Credentials { uid: 7, gid: 7 }, ..caller };
    assert_eq!(fs.stat(&stranger, ROOT, b"private/file", true), Err(Error::AccessDenied));
    assert_eq!(create(&fs, &stranger, "new"), Err(Error::AccessDenied));
    assert_eq!(fs.unlink(&stranger, ROOT, b"private"), Err(Error::AccessDenied));
    let root = Caller { credentials: Credentials { uid: 0, gid: 0 }, ..caller };
    fs.stat(&root, ROOT, b"private/file", true).expect("root sees everything");
}

#[test]
fn what_is_made_in_a_set_group_id_directory_has_its_group_and_members_of_it_their_rights() {
    let (fs, caller) = namespace();
    let directory = fs.make_directory(&caller, ROOT, b"shared", 0o770).expect("mkdir");
    let root = Caller { credentials: Credentials { uid: 0, gid: 0 }, ..caller };
    fs.set_owner(&root, directory, None, Some(70)).expect("root may");
    fs.set_mode(&root, directory, 0o2770).expect("root may");
    let stranger = Caller { credentials: Credentials { uid: 7, gid: 7 }, ..caller };
    let member = Caller { groups: &[60, 70], ..stranger };
    assert_eq!(create(&fs, &stranger, "shared/file"), Err(Error::AccessDenied));
    create(&fs, &member, "shared/file").expect("a member may");
    fs.make_directory(&member, ROOT, b"shared/below", 0o700).expect("a member may");
    let seen = |path| fs.stat(&root, ROOT, path, true).map(|seen| (seen.gid, seen.mode & 0o7777));
    assert_eq!(seen(b"shared/file").map(|seen| seen.0), Ok(70));
    assert_eq!(seen(b"shared/below"), Ok((70, 0o2700)));
}

#[test]
fn an_unlinked_file_lives_until_its_last_description_closes() {
    let (fs, caller) = namespace();
    let options = OpenOptions { read: true, write: true, create: true, ..Default::default() };
    let opened = fs.open_file(&caller, ROOT, b"scratch", options, 0o600).expect("open");
    fs.unlink(&caller, ROOT, b"scratch").expect("unlink");
    assert_eq!(fs.attributes(opened.inode).expect("alive").links, 0);
    fs.release(caller.slot, opened.handle, caller.now).expect("close");
    assert_eq!(fs.attributes(opened.inode), Err(Error::NotFound));
    fs.check().expect("consistent");
}

#[test]
fn every_process_is_listed_however_many_there_are() {
    let (fs, _) = namespace();
    for pid in 100..300 {
        let identity = ProcessIdentity { pid, pid_namespace: 1, start_time: 1 };
        fs.attach(identity).expect("attach");
    }
    assert_eq!(fs.processes().expect("list").len(), 201);
}

#[test]
fn a_change_of_the_data_by_an_ordinary_user_drops_set_user_id() {
    let (fs, caller) = namespace();
    let inode = create(&fs, &caller, "program").expect("create");
    let mode = || fs.attributes(inode).expect("attributes").mode & 0o7777;
    fs.set_mode(&caller, inode, 0o6755).expect("chmod");
    fs.truncate(&caller, inode, 100).expect("truncate");
    assert_eq!(mode(), 0o755);
    fs.set_mode(&caller, inode, 0o2644).expect("chmod");
    fs.truncate(&caller, inode, 200).expect("truncate");
    assert_eq!(mode(), 0o2644, "without group execution the bit means mandatory locking");
    let root = Caller { credentials: Credentials { uid: 0, gid: 0 }, ..caller };
    fs.set_mode(&root, inode, 0o4755).expect("chmod");
    fs.truncate(&root, inode, 300).expect("truncate");
    assert_eq!(mode(), 0o4755);
}

#[test]
fn file_that_is_open_for_writing_or_another_one_is_not_evicted_as_unchanged() {
    let (fs, caller) = namespace();
    let inode = create(&fs, &caller, "f").expect("create");
    let version = fs.attributes(inode).expect("is there").version;
    let evict = |expected| fs.evict_unchanged(&caller, ROOT, b"f", expected);
    let options = OpenOptions { write: true, ..Default::default() };
    let opened = fs.open_file(&caller, ROOT, b"f", options, 0).expect("opens");
    assert_eq!(evict((inode, version)), Err(Error::Busy), "somebody may write to it");
    fs.release(caller.slot, opened.handle, caller.now).expect("closes");
    assert_eq!(evict((inode, version + 1)), Err(Error::Busy), "its data are others");
    assert_eq!(evict((ROOT, version)), Err(Error::Busy), "it is another file");
    assert_eq!(evict((inode, version)), Ok(()));
    assert_eq!(fs.stat(&caller, ROOT, b"f", true), Err(Error::NotFound));
    fs.check().expect("consistent");
}
