//! Extended attributes through the public interface: what is refused, how much a file can have, and
//! how long they stay.

use cairn_core::{
    Caller, Credentials, Error, ExtendedUpdate, Geometry, HandleId, HeapMemory, InodeId, Microfs,
    OpenOptions, PATH_BYTES_MAX, ProcessIdentity, ROOT, Timestamp,
};

const ANY: ExtendedUpdate = ExtendedUpdate { create: false, replace: false };

fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |sum, &byte| sum.rotate_left(5) ^ u32::from(byte))
}

fn namespace() -> (Microfs, Caller) {
    let geometry = Geometry { inode_capacity: 64, ..Geometry::new(b"/cairn", [64, 0, 0, 0], 0) };
    let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
    let owner = Credentials { uid: 1000, gid: 1000 };
    Microfs::format(&memory, &geometry, checksum, owner, Timestamp(1)).expect("format");
    let fs = Microfs::open(Box::new(memory), checksum).expect("open");
    let identity = ProcessIdentity { pid: 7, pid_namespace: 1, start_time: 9 };
    let slot = fs.attach(identity).expect("attach").slot;
    (fs, Caller { slot, credentials: owner, groups: &[], now: Timestamp(2) })
}

fn open(fs: &Microfs, caller: &Caller, path: &[u8]) -> (HandleId, InodeId) {
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let opened = fs.open_file(caller, ROOT, path, options, 0o644).expect("opens");
    (opened.handle, opened.inode)
}

#[test]
fn names_that_are_none_are_refused_and_change_nothing() {
    let (fs, caller) = namespace();
    let (_, file) = open(&fs, &caller, b"file");
    let link = fs.symlink(&caller, b"file", ROOT, b"link").expect("links");
    let long = [&b"user."[..], &[b'n'; 251]].concat();
    let set = |inode, name: &[u8]| fs.set_extended(&caller, inode, name, b"value", ANY);
    for (name, error) in [
        (&b""[..], Error::OutOfRange),
        (&long, Error::OutOfRange),
        (b"user.", Error::Invalid),
        (b"user.a\0b", Error::Invalid),
        (b"user", Error::NotSupported),
        (b"security.a", Error::NotSupported),
        (b"trusted.a", Error::NotSupported),
        (b"system.posix_acl_access", Error::NotSupported),
    ] {
        assert_eq!(set(file, name), Err(error), "{name:?}");
    }
    assert_eq!(set(link, b"user.a"), Err(Error::NotPermitted));
    assert_eq!(fs.extended(&caller, link, b"user.a"), Err(Error::NoData));
    let too_long = vec![0; cairn_core::EXTENDED_VALUE_BYTES_MAX + 1];
    let result = fs.set_extended(&caller, file, b"user.a", &too_long, ANY);
    assert_eq!(result, Err(Error::TooLarge));
    assert!(!fs.attributes(file).expect("is there").extended);
    fs.check().expect("is whole");
}

#[test]
fn value_for_which_there_is_no_room_leaves_the_others_as_they_are() {
    let (fs, caller) = namespace();
    let (_, file) = open(&fs, &caller, b"file");
    fs.set_extended(&caller, file, b"user.a", &[7; 3000], ANY).expect("fits");
    let later = Caller { now: Timestamp(9), ..caller };
    let result = fs.set_extended(&later, file, b"user.b", &[8; 2000], ANY);
    assert_eq!(result, Err(Error::NoSpace));
    assert_eq!(fs.attributes(file).expect("is there").changed, caller.now);
    let all = fs.all_extended(file).expect("can be read");
    assert_eq!(all.iter().collect::<Vec<_>>(), [(&b"user.a"[..], &[7; 3000][..])]);
    assert!(all.as_bytes().len() < PATH_BYTES_MAX);
    fs.check().expect("is whole");
}

#[test]
fn attributes_of_a_removed_file_stay_until_its_last_close() {
    let (fs, caller) = namespace();
    // In all, many more than there are records for at a time.
    for round in 0..200 {
        let (handle, file) = open(&fs, &caller, b"file");
        fs.set_extended(&caller, file, b"user.a", &[round; 3000], ANY).expect("fits");
        fs.unlink(&caller, ROOT, b"file").expect("unlinks");
        assert_eq!(fs.extended(&caller, file, b"user.a"), Ok(vec![round; 3000]));
        fs.set_extended(&caller, file, b"user.b", b"late", ANY).expect("is still there");
        fs.release(caller.slot, handle, caller.now).expect("closes");
        let directory = fs.make_directory(&caller, ROOT, b"directory", 0o755).expect("makes");
        fs.set_extended(&caller, directory, b"user.a", &[round; 3000], ANY).expect("fits");
        fs.remove_directory(&caller, ROOT, b"directory").expect("removes");
    }
    fs.check().expect("every record of text is somebody's");
}
