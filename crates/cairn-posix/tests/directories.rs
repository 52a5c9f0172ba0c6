//! Names, directories, the current directory, and paths that leave the mount.

mod common;

use std::collections::BTreeSet;
use std::ffi::CStr;

use cairn_posix::PathError;
use cairn_posix::files::directory::{self, Stream};
use cairn_posix::files::place::Place;
use cairn_posix::files::{cwd, file, names};
use cairn_posix::task::fs_context;
use common::*;

fn next(stream: &Stream) -> Option<(String, u8)> {
    let entry = stream.next().unwrap();
    // SAFETY: a non-null entry is complete and valid until the next call on the stream.
    (!entry.is_null()).then(|| unsafe {
        let name = CStr::from_ptr((*entry).d_name.as_ptr());
        (name.to_str().unwrap().to_owned(), (*entry).d_type)
    })
}

fn listing(name: &str) -> BTreeSet<String> {
    let stream = directory::open(&at(name)).unwrap();
    let found = core::iter::from_fn(|| next(stream)).map(|(name, _)| name).collect();
    stream.close().unwrap();
    found
}

#[test]
fn stream_gives_dots_and_every_entry_once_with_its_type() {
    let _turn = turn();
    names::make_directory(&at("many"), 0o755).unwrap();
    let expected: BTreeSet<String> = (0..500).map(|number| format!("file-{number}")).collect();
    expected.iter().for_each(|name| put(&format!("many/{name}"), b""));
    names::symlink(b"file-1", &at("many/link")).unwrap();
    let stream = directory::open(&at("many")).unwrap();
    assert_eq!(next(stream), Some((".".to_owned(), libc::DT_DIR)));
    assert_eq!(next(stream), Some(("..".to_owned(), libc::DT_DIR)));
    let entries: Vec<_> = core::iter::from_fn(|| next(stream)).collect();
    assert_eq!(entries.len(), 501);
    assert!(entries.contains(&("link".to_owned(), libc::DT_LNK)));
    let files: BTreeSet<String> =
        entries.into_iter().filter(|entry| entry.1 == libc::DT_REG).map(|entry| entry.0).collect();
    assert_eq!(files, expected);
    stream.close().unwrap();
    // Remove entries while reading, as `rm -r` does.
    let stream = directory::open(&at("many")).unwrap();
    while let Some((name, kind)) = next(stream) {
        if kind != libc::DT_DIR {
            remove(&format!("many/{name}"));
        }
    }
    stream.close().unwrap();
    names::remove_directory(&at("many")).unwrap();
}

#[test]
fn position_of_a_stream_is_found_again() {
    let _turn = turn();
    names::make_directory(&at("seek"), 0o755).unwrap();
    (0..50).for_each(|number| put(&format!("seek/{number}"), b""));
    let stream = directory::open(&at("seek")).unwrap();
    for skipped in [0, 1, 2, 3, 20, 51] {
        stream.set_position(0).unwrap();
        (0..skipped).for_each(|_| assert!(next(stream).is_some()));
        let position = stream.position().unwrap();
        let expected = next(stream);
        while next(stream).is_some() {}
        stream.set_position(position).unwrap();
        assert_eq!(next(stream), expected, "after {skipped}");
    }
    stream.close().unwrap();
    (0..50).for_each(|number| remove(&format!("seek/{number}")));
    names::remove_directory(&at("seek")).unwrap();
}

#[test]
fn raw_entries_continue_where_the_shared_cursor_is() {
    let _turn = turn();
    names::make_directory(&at("raw"), 0o755).unwrap();
    (0..20).for_each(|number| put(&format!("raw/{number}"), b""));
    let descriptor = open("raw", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let mut buffer = [0; 100];
    let mut calls = 0;
    let mut bytes = 0;
    loop {
        match directory::read_entries(descriptor, &mut buffer).unwrap() {
            0 => break,
            filled => bytes += filled,
        }
        calls += 1;
    }
    assert!(calls >= 5 && bytes == 22 * 24, "{calls} {bytes}");
    let too_small = directory::read_entries(descriptor, &mut [0; 0]);
    assert_eq!(too_small, Ok(0));
    file::seek(handle(descriptor), 0, libc::SEEK_SET).unwrap();
    assert!(directory::read_entries(descriptor, &mut [0; 10]).is_err());
    close(descriptor);
    (0..20).for_each(|number| remove(&format!("raw/{number}")));
    names::remove_directory(&at("raw")).unwrap();
}

#[test]
fn rename_replaces_moves_and_refuses_as_posix_says() {
    let _turn = turn();
    put("old", b"old");
    put("new", b"new");
    names::rename(&at("old"), &at("new"), libc::RENAME_NOREPLACE).unwrap_err();
    names::rename(&at("old"), &at("new"), 0).unwrap();
    assert_eq!(get("new"), b"old");
    put("other", b"other");
    names::rename(&at("new"), &at("other"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((get("new"), get("other")), (b"other".to_vec(), b"old".to_vec()));
    names::make_directory(&at("box"), 0o755).unwrap();
    assert_eq!(names::rename(&at("new"), &at("box"), 0).unwrap_err().0, libc::EISDIR);
    assert_eq!(names::rename(&at("box"), &at("box/in"), 0).unwrap_err().0, libc::EINVAL);
    names::rename(&at("new"), &at("box/new"), 0).unwrap();
    assert_eq!(errno(names::remove_directory(&at("box"))), libc::ENOTEMPTY);
    assert_eq!(listing("box"), [".", "..", "new"].map(str::to_owned).into());
    names::remove(&at("box/new")).unwrap();
    names::remove(&at("box")).unwrap();
    remove("other");
}

#[test]
fn hard_link_is_the_same_file() {
    let _turn = turn();
    put("name", b"content");
    names::link(&at("name"), &at("alias"), false).unwrap();
    let (one, two) = (file::stat(&at("name"), true), file::stat(&at("alias"), true));
    assert_eq!(one.unwrap(), two.clone().unwrap());
    assert_eq!(two.unwrap().links, 2);
    remove("name");
    assert_eq!(get("alias"), b"content");
    remove("alias");
}

#[test]
fn path_that_leaves_the_mount_says_where_it_leads() {
    let _turn = turn();
    names::symlink(b"/etc/hostname", &at("out")).unwrap();
    names::symlink(b"/cairn/target", &at("in")).unwrap();
    put("target", b"inside");
    let elsewhere = |text: &str| PathError::Elsewhere(std::ffi::CString::new(text).unwrap());
    assert_eq!(open("out", libc::O_RDONLY), Err(elsewhere("/etc/hostname")));
    assert_eq!(file::stat(&at("../etc"), true), Err(elsewhere("/etc")));
    assert_eq!(get("in"), b"inside");
    assert!(file::stat(&at("out"), false).unwrap().is_symlink());
    assert_eq!(names::canonical(&at("./in")).unwrap(), b"/cairn/target");
    assert_eq!(names::canonical(&at("")).unwrap(), b"/cairn");
    assert_eq!(names::canonical(&at("out")), Err(elsewhere("/etc/hostname")));
    assert_eq!(names::rename(&at("target"), &at("../x"), 0).unwrap_err().0, libc::EXDEV);
    ["out", "in", "target"].into_iter().for_each(remove);
}

#[test]
fn current_directory_of_ours_makes_relative_paths_ours() {
    let _turn = turn();
    names::make_directory(&at("work"), 0o755).unwrap();
    names::make_directory(&at("work/deep"), 0o755).unwrap();
    assert_eq!(routed("file"), None);
    cwd::enter(&at("work/deep")).unwrap();
    assert_eq!(cwd::path().unwrap().unwrap(), b"/cairn/work/deep");
    let inode = cwd::inode().unwrap();
    assert_eq!(routed("../x"), Some((inode.0, "../x".to_owned())));
    let here = file::stat(&Place { base: inode, path: b".." }, true).unwrap();
    assert_eq!(here.inode, file::stat(&at("work"), true).unwrap().inode);
    // The kernel's current directory has no name and contains nothing.
    assert!(std::env::current_dir().is_err());
    assert!(std::fs::write("uncovered", b"x").is_err());
    // The current directory stays, even without a name.
    names::remove_directory(&at("work/deep")).unwrap();
    assert_eq!(cwd::path().unwrap().unwrap_err().0, libc::ENOENT);
    std::env::set_current_dir("/tmp").unwrap();
    cwd::left();
    assert!(fs_context::is_foreign() && cwd::path().is_none());
    names::remove_directory(&at("work")).unwrap();
}

#[test]
fn relative_path_can_name_the_mount_from_outside() {
    let _turn = turn();
    std::env::set_current_dir("/usr/bin").unwrap();
    cwd::left();
    let root = cairn_core::ROOT.0;
    assert_eq!(routed("../../cairn/x"), Some((root, "x".to_owned())));
    assert_eq!(routed("cairn/x"), None);
    std::env::set_current_dir("/").unwrap();
    assert_eq!(routed("cairn/x"), Some((root, "x".to_owned())));
    assert_eq!(routed("./cairn"), Some((root, String::new())));
    assert_eq!(routed("cairns"), None);
    assert_eq!(routed("/cairn/x"), Some((root, "x".to_owned())));
    assert_eq!(routed("/usr/../cairn//x"), Some((root, "x".to_owned())));
    assert_eq!(routed("/cairnx"), None);
}

#[test]
fn umask_is_applied_to_files_and_directories() {
    let _turn = turn();
    let before = fs_context::umask();
    fs_context::set_umask(0o027);
    let descriptor = file::open(&at("masked"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    names::make_directory(&at("masked-directory"), 0o777).unwrap();
    fs_context::set_umask(before);
    assert_eq!(file::stat(&at("masked"), true).unwrap().mode & 0o7777, 0o640);
    assert_eq!(file::stat(&at("masked-directory"), true).unwrap().mode & 0o7777, 0o750);
    close(descriptor);
    remove("masked");
    names::remove_directory(&at("masked-directory")).unwrap();
}
