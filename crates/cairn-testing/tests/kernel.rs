//! The reference model agrees with the kernel: random operations on a directory of a real file
//! system. So `tests/model.rs` demands of Cairn what Linux does, including errors and their order.
//!
//! Does not compare times, because the kernel's clock is coarse, nor sizes of directories, because
//! they depend on the file system.

use cairn_core::{Caller, Credentials, Error, OpenOptions, RenameMode, SlotId, Timestamp};
use cairn_testing::model::Facts;
use cairn_testing::random::{Random, for_each_seed};
use cairn_testing::step::{Base, Generator, Outcome, Place, Reference, Step};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const STEPS: usize = 400;

/// A scratch directory; dropping it removes the directory.
struct Scratch(PathBuf);

impl Scratch {
    fn new(seed: u64) -> Scratch {
        let name = format!("cairn-kernel-{}-{seed}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the scratch directory can be made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("the scratch directory is ours");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(&self.0).output();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The kernel as the system under test.
struct Kernel {
    root: OwnedFd,
    opens: Vec<Option<OwnedFd>>,
}

fn c(path: &[u8]) -> CString {
    CString::new(path).expect("generated paths contain no NUL")
}

/// Converts the result of a system call. Errors: errno.
fn check(result: i64) -> Result<i64, i32> {
    match result {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        value => Ok(value),
    }
}

impl Kernel {
    fn open(root: &Path) -> Kernel {
        let path = c(root.as_os_str().as_encoded_bytes());
        // SAFETY: the path is NUL-terminated, and nothing else owns the returned descriptor.
        let root = unsafe {
            OwnedFd::from_raw_fd(
                check(i64::from(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY)))
                    .expect("the scratch directory exists") as i32,
            )
        };
        Kernel { root, opens: Vec::new() }
    }

    /// Whether the file system of the scratch directory supports extended attributes; some do not.
    fn has_extended(&self) -> bool {
        // SAFETY: the name is NUL-terminated, there is no buffer, and the descriptor is open.
        let found = unsafe {
            libc::fgetxattr(self.root.as_raw_fd(), c"user.a".as_ptr(), std::ptr::null_mut(), 0)
        };
        check(found as i64) != Err(libc::EOPNOTSUPP)
    }

    fn base(&self, base: Base) -> i32 {
        base.map_or(self.root.as_raw_fd(), |place| self.descriptor(place))
    }

    fn descriptor(&self, place: Place) -> i32 {
        self.opens[place].as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn take(&mut self, step: &Step, place: Place) -> Result<Outcome, i32> {
        match step {
            Step::Open { base, path, options, mode } => {
                let flags = open_flags(options);
                let path = c(path);
                // SAFETY: the path is NUL-terminated, and the directory descriptor is valid.
                let opened = unsafe { libc::openat(self.base(*base), path.as_ptr(), flags, *mode) };
                let descriptor = check(i64::from(opened))? as i32;
                if place == self.opens.len() {
                    self.opens.push(None);
                }
                // SAFETY: the descriptor was just opened, and nothing else owns it.
                self.opens[place] = Some(unsafe { OwnedFd::from_raw_fd(descriptor) });
                Ok(Outcome::Opened(place))
            }
            Step::Close { open } => {
                self.opens[*open] = None;
                Ok(Outcome::Done)
            }
            _ => self.take_with_open_files(step),
        }
    }

    fn take_with_open_files(&self, step: &Step) -> Result<Outcome, i32> {
        let done = |result: i32| check(i64::from(result)).map(|_| Outcome::Done);
        // SAFETY: every path is NUL-terminated and lives until the end of its arm. Every buffer is
        // as long as the length passed with it. Descriptors are open or -1.
        unsafe {
            match step {
                Step::Open { .. } | Step::Close { .. } => unreachable!("taken by `take`"),
                Step::MakeDirectory { base, path, mode } => {
                    done(libc::mkdirat(self.base(*base), c(path).as_ptr(), *mode))
                }
                Step::RemoveDirectory { base, path } => {
                    done(libc::unlinkat(self.base(*base), c(path).as_ptr(), libc::AT_REMOVEDIR))
                }
                Step::Unlink { base, path } => {
                    done(libc::unlinkat(self.base(*base), c(path).as_ptr(), 0))
                }
                Step::Link { old, new, follow } => done(libc::linkat(
                    self.base(old.0),
                    c(&old.1).as_ptr(),
                    self.base(new.0),
                    c(&new.1).as_ptr(),
                    if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 },
                )),
                Step::Symlink { target, base, path } => {
                    done(libc::symlinkat(c(target).as_ptr(), self.base(*base), c(path).as_ptr()))
                }
                Step::ReadLink { base, path } => {
                    let mut target = vec![0_u8; 4096];
                    let length = check(libc::readlinkat(
                        self.base(*base),
                        c(path).as_ptr(),
                        target.as_mut_ptr().cast(),
                        target.len(),
                    ) as i64)?;
                    target.truncate(length as usize);
                    Ok(Outcome::Target(target))
                }
                Step::Rename { from, to, mode } => done(libc::renameat2(
                    self.base(from.0),
                    c(&from.1).as_ptr(),
                    self.base(to.0),
                    c(&to.1).as_ptr(),
                    match mode {
                        RenameMode::Replace => 0,
                        RenameMode::NoReplace => libc::RENAME_NOREPLACE,
                        RenameMode::Exchange => libc::RENAME_EXCHANGE,
                    },
                )),
                Step::Stat { base, path, follow } => {
                    let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                    let mut stat: libc::stat = std::mem::zeroed();
                    let result =
                        libc::fstatat(self.base(*base), c(path).as_ptr(), &mut stat, flags);
                    done(result).map(|_| Outcome::Facts(facts(&stat)))
                }
                Step::Access { base, path, mask } => {
                    let flags = libc::AT_EACCESS;
                    done(libc::faccessat(self.base(*base), c(path).as_ptr(), *mask as i32, flags))
                }
                Step::SetMode { open, mode } => done(libc::fchmod(self.descriptor(*open), *mode)),
                Step::List { base } => self.list(*base),
                Step::SetExtended { open, name, value, update } => done(libc::fsetxattr(
                    self.descriptor(*open),
                    c(name).as_ptr(),
                    value.as_ptr().cast(),
                    value.len(),
                    if update.create { libc::XATTR_CREATE } else { 0 }
                        | if update.replace { libc::XATTR_REPLACE } else { 0 },
                )),
                Step::GetExtended { open, name } => {
                    let mut value = vec![0_u8; 4096];
                    let length = check(libc::fgetxattr(
                        self.descriptor(*open),
                        c(name).as_ptr(),
                        value.as_mut_ptr().cast(),
                        value.len(),
                    ) as i64)?;
                    value.truncate(length as usize);
                    Ok(Outcome::Value(value))
                }
                Step::RemoveExtended { open, name } => {
                    done(libc::fremovexattr(self.descriptor(*open), c(name).as_ptr()))
                }
                Step::ListExtended { open } => {
                    let mut list = vec![0_u8; 4096];
                    let length = check(libc::flistxattr(
                        self.descriptor(*open),
                        list.as_mut_ptr().cast(),
                        list.len(),
                    ) as i64)?;
                    let names = list[..length as usize].split_inclusive(|&byte| byte == 0);
                    let names = names.map(|name| name[..name.len() - 1].to_vec());
                    Ok(Outcome::Attributes(names.collect()))
                }
                Step::Read { open, at, length } => {
                    let mut bytes = vec![0_u8; *length as usize];
                    let (target, descriptor) = (bytes.as_mut_ptr().cast(), self.descriptor(*open));
                    let from = match at {
                        Some(offset) => *offset as i64,
                        None => libc::lseek(descriptor, 0, libc::SEEK_CUR),
                    };
                    let count = check(match at {
                        Some(_) => libc::pread(descriptor, target, bytes.len(), from) as i64,
                        None => libc::read(descriptor, target, bytes.len()) as i64,
                    })?;
                    bytes.truncate(count as usize);
                    Ok(Outcome::Bytes(from as u64, bytes))
                }
                Step::Write { open, at, bytes } => {
                    let (source, descriptor) = (bytes.as_ptr().cast(), self.descriptor(*open));
                    check(match at {
                        Some(at) => libc::pwrite(descriptor, source, bytes.len(), *at as i64),
                        None => libc::write(descriptor, source, bytes.len()),
                    } as i64)
                    .map(|count| Outcome::Written(None, count as u64))
                }
                Step::Truncate { open, size } => {
                    done(libc::ftruncate(self.descriptor(*open), *size as i64))
                }
                Step::Seek { open, offset, whence } => {
                    check(libc::lseek(self.descriptor(*open), *offset, *whence))
                        .map(|offset| Outcome::Offset(offset as u64))
                }
            }
        }
    }

    fn list(&self, base: Base) -> Result<Outcome, i32> {
        // SAFETY: the path is NUL-terminated, and `directory` below owns the returned descriptor.
        // It is opened anew, because the model checks the right to read at every listing.
        let descriptor = check(i64::from(unsafe {
            libc::openat(self.base(base), c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY)
        }))? as i32;
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let directory = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let mut names = BTreeMap::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            let mode = if kind.is_dir() {
                libc::S_IFDIR
            } else if kind.is_symlink() {
                libc::S_IFLNK
            } else {
                libc::S_IFREG
            };
            names.insert(entry.file_name().into_vec(), mode);
        }
        Ok(Outcome::Names(names))
    }
}

fn open_flags(options: &OpenOptions) -> i32 {
    let access = match (options.read, options.write) {
        (true, true) => libc::O_RDWR,
        (false, true) => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    };
    let flag = |set: bool, flag: i32| if set { flag } else { 0 };
    access
        | flag(options.append, libc::O_APPEND)
        | flag(options.create, libc::O_CREAT)
        | flag(options.exclusive, libc::O_EXCL)
        | flag(options.truncate, libc::O_TRUNC)
        | flag(options.directory, libc::O_DIRECTORY)
        | flag(options.no_follow, libc::O_NOFOLLOW)
}

fn facts(stat: &libc::stat) -> Facts {
    Facts {
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        links: stat.st_nlink as u32,
        size: if stat.st_mode & libc::S_IFMT == libc::S_IFDIR { 0 } else { stat.st_size as u64 },
        modified: 0,
        changed: 0,
        unclean: false,
    }
}

/// Whether the step operates on extended attributes.
fn is_extended(step: &Step) -> bool {
    matches!(
        step,
        Step::SetExtended { .. }
            | Step::GetExtended { .. }
            | Step::RemoveExtended { .. }
            | Step::ListExtended { .. }
    )
}

/// Returns the part of a result that can be compared.
fn comparable(result: Result<Outcome, i32>) -> Result<Outcome, i32> {
    result.map(|outcome| match outcome {
        Outcome::Facts(facts) => Outcome::Facts(Facts { modified: 0, changed: 0, ..facts }),
        other => other,
    })
}

fn run(seed: u64) {
    let scratch = Scratch::new(seed);
    // SAFETY: these calls cannot fail and touch no memory.
    let credentials = unsafe {
        libc::umask(0);
        Credentials { uid: libc::geteuid(), gid: libc::getegid() }
    };
    let caller = Caller { slot: SlotId(1), credentials, groups: &[], now: Timestamp(0) };
    let mut reference = Reference::new(&caller);
    let mut kernel = Kernel::open(&scratch.0);
    let has_extended = kernel.has_extended();
    if !has_extended {
        println!("{:?} has no extended attributes: these steps are left out", scratch.0);
    }
    let random = Random::new(seed);
    let mut generator =
        Generator { random, reach: 20_000, write_bytes: 6000, opens_max: 8, holder: caller.slot.0 };
    for number in 0..STEPS {
        let mut step = generator.step(&mut reference);
        if let Step::Open { options, .. } = &mut step {
            // `open` cannot ask for neither reading nor writing.
            options.read |= !options.write;
        }
        // Seeking in a directory means something different on every file system.
        if let Step::Seek { open, .. } = step {
            if reference.node(open).is_ok_and(|node| reference.model.node(node).is_directory()) {
                continue;
            }
        }
        if is_extended(&step) && !has_extended {
            continue;
        }
        let place = reference.free_place();
        let expected = reference.take(&caller, &step, None);
        // A path that climbs out of the root would leave the scratch directory.
        if expected == Err(Error::Escapes) {
            continue;
        }
        let expected = comparable(expected.map_err(|error| error.errno()));
        let seen = comparable(kernel.take(&step, place));
        assert_eq!(seen, expected, "seed {seed}, step {number}: {step:?}");
    }
}

#[test]
fn random_operations_give_what_the_kernel_gives() {
    for_each_seed(40, run);
}
