//! Mounting, unmounting, and serving a mount on after its server died.
//!
//! Must stay true: a mount is made with the rights of its user. Where the kernel refuses it to a
//! user, the system's helper `fusermount3` makes it.

use fuser::{Filesystem, Session};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, SocketFlags, SocketType,
};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, slice};

/// Type of our mounts in `/proc/self/mountinfo`.
pub const FILE_SYSTEM: &str = "fuse.cairn";
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Length of the request with which the kernel begins, and its operation.
const INIT_BYTES: usize = 104;
const INIT: u32 = 26;
/// Version of the protocol, and flags, that it offers here.
const INIT_OFFER: [u32; 5] = [7, 45, 1 << 20, u32::MAX, u32::MAX];
/// Notification that makes the kernel send unanswered requests again.
const RESEND: i32 = 7;

/// Mounts at `place`, for other users too if `for_all`. `source` is shown as the mounted device.
/// Returns the connection to the kernel.
pub fn mount(place: &Path, source: &str, for_all: bool) -> io::Result<OwnedFd> {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    let refused =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    let mounted = opened.and_then(|file| {
        let connection = OwnedFd::from(file);
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let others = if for_all { ",allow_other" } else { "" };
        let number = connection.as_raw_fd();
        let data = format!("fd={number},rootmode=40000,user_id={user},group_id={group}{others}");
        let data = CString::new(data)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(source, place, FILE_SYSTEM, flags, data.as_c_str())?;
        Ok(connection)
    });
    match mounted {
        Err(error) if refused(&error) && !rustix::process::geteuid().is_root() => {
            mount_by_helper(place, source, for_all)
        }
        mounted => mounted,
    }
}

fn mount_by_helper(place: &Path, source: &str, for_all: bool) -> io::Result<OwnedFd> {
    let kind = SocketType::STREAM;
    let (own, other) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::empty(), None)?;
    rustix::io::fcntl_setfd(&own, rustix::io::FdFlags::CLOEXEC)?;
    let others = if for_all { ",allow_other" } else { "" };
    // A comma would begin another option.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let options = format!("nosuid,nodev,fsname={source},subtype=cairn{others}");
    let run = |helper: &str| {
        let mut command = Command::new(helper);
        command.args(["-o", &options, "--"]).arg(place).stdin(Stdio::null());
        command.env("_FUSE_COMMFD", other.as_raw_fd().to_string()).output()
    };
    let ran = HELPERS
        .iter()
        .map(|helper| run(helper))
        .find(|ran| !matches!(ran, Err(error) if error.kind() == io::ErrorKind::NotFound));
    let Some(ran) = ran else {
        let text = "only root may mount here without fusermount3 (package fuse3)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    };
    let output = ran?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(io::Error::other(text));
    }
    drop(other);
    receive(&own)
}

/// Receives the descriptor that the helper sends.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = 0_u8;
    let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(slice::from_mut(&mut byte))],
        &mut ancillary,
        flags,
    )?;
    let mut rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    rights.next().ok_or_else(|| io::Error::other("fusermount3 sent no descriptor"))
}

/// Unmounts `place`. `lazily`: at once for whoever looks for it, for others when they close their
/// files. Errors: it is busy.
pub fn unmount(place: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(place, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => {
            let mut arguments = vec!["-u"];
            arguments.extend(lazily.then_some("-z"));
            let run = |helper| Command::new(helper).args(&arguments).arg("--").arg(place).output();
            let output = run(HELPERS[0]).or_else(|_| run(HELPERS[1]))?;
            match output.status.success() {
                true => Ok(()),
                false => Err(io::Error::other(
                    String::from_utf8_lossy(&output.stderr).trim().to_string(),
                )),
            }
        }
        unmounted => Ok(unmounted?),
    }
}

/// A mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where it is.
    pub place: PathBuf,
    /// What was given as its source.
    pub source: String,
    /// User who mounted it.
    pub user: u32,
}

/// Returns the mounts of ours that this process sees, the newest last.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    let listed = fs::read("/proc/self/mountinfo")?;
    Ok(listed.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let (kind, source) = (fields.get(dash + 1)?, fields.get(dash + 2)?);
    let place = PathBuf::from(OsString::from_vec(unescaped(fields.get(4)?)));
    let source = String::from_utf8(unescaped(source)).ok()?;
    let options = std::str::from_utf8(fields.get(dash + 3)?).ok()?;
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="))?;
    let user = user.parse().ok()?;
    (*kind == FILE_SYSTEM.as_bytes()).then_some(Mounted { place, source, user })
}

/// Replaces the octal escapes of blanks and backslashes.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// Returns a session that goes on with a connection that an earlier server had, and asks the kernel
/// for the requests that this one did not answer.
///
/// `fuser` begins with the kernel's first request, which comes once per mount. So it gets one from
/// here, over a socket; then the connection takes the place of the socket.
pub(crate) fn go_on<F: Filesystem>(
    filesystem: F,
    connection: OwnedFd,
    config: fuser::Config,
) -> io::Result<Session<F>> {
    let kind = SocketType::SEQPACKET;
    let (own, other) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::io::write(&own, &init_request())?;
    let session = Session::from_fd(filesystem, other, config.acl, config)?;
    let number = session.as_fd().as_raw_fd();
    // SAFETY: both numbers are open descriptors. The session owns the one that is replaced, and
    // closes what is there then.
    if unsafe { libc::dup3(connection.as_raw_fd(), number, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::io::write(&connection, &resend_notification())?;
    Ok(session)
}

fn init_request() -> [u8; INIT_BYTES] {
    let mut request = [0; INIT_BYTES];
    let mut put = |at: usize, word: u32| request[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    put(0, INIT_BYTES as u32);
    put(4, INIT);
    // Its unique number.
    put(8, 1);
    INIT_OFFER.iter().enumerate().for_each(|(index, word)| put(40 + 4 * index, *word));
    request
}

fn resend_notification() -> [u8; 16] {
    let mut notification = [0; 16];
    notification[0..4].copy_from_slice(&16_u32.to_ne_bytes());
    notification[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    notification
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn own_mounts_are_found_among_others_with_their_blanks() {
        let line = b"36 35 98:0 / /mnt\\0402 rw,noatime shared:1 - fuse.cairn cairn:/s\\134x rw,user_id=7,group_id=8";
        let found = parse(line).expect("is ours");
        assert_eq!(
            (found.place.as_os_str().as_bytes(), &found.source[..]),
            (&b"/mnt 2"[..], "cairn:/s\\x")
        );
        assert_eq!(found.user, 7);
        assert_eq!(parse(b"36 35 98:0 / /mnt rw - ext4 /dev/sda rw"), None);
        assert_eq!(parse(b""), None);
    }
}
