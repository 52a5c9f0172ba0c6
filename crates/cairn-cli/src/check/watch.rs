//! A net below a program in a trial: finds its system calls that concern files of the store. Calls
//! that Cairn serves never reach the kernel, so a caught call was missed by Cairn.
//!
//! The kernel lets a filter stop the program's calls about files (seccomp user notification) until
//! we have looked at their arguments. It then executes them unchanged. This costs some microseconds
//! per call.
//!
//! Must stay true: every stopped call is continued, whatever the look at it gave.
//!
//! Does not see: paths relative to a directory of the store, what an io_uring does once it is set
//! up, what the C library itself writes to a descriptor of the store. A program under a filter
//! gains no privileges when it is executed; programs that would gain some are noted.

use crate::check::rights::rights_gained;
use crate::program::kernel_calls::{self, KERNEL_CALLS, KernelCall};
use crate::program::seccomp::{self, Filter};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// How often the catcher checks whether to end.
const LOOK_EVERY_MS: i32 = 50;
/// How long processes may go on after the command has ended.
const PATIENCE: Duration = Duration::from_secs(2);
/// First kernel that lets a stopped call continue.
const KERNEL_OLDEST: (u32, u32) = (5, 5);
/// Maximum length of a path that is examined.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;
/// Libraries whose calls on descriptors of the store are part of serving them, or of recognising
/// them.
const SERVING: [&str; 2] = ["libcairn_preload.so", "libc.so.6"];

/// A call that reached the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Catch {
    /// Name of the call.
    pub call: &'static str,
    /// Name of the calling thread, as the kernel shows it.
    pub program: String,
    /// File of the calling program.
    pub file: String,
}

/// What is known of equal calls.
#[derive(Debug)]
pub struct Made {
    /// Number of these calls.
    pub times: u64,
    /// Path argument of the first one, if it had one.
    pub path: Option<PathBuf>,
}

/// Everything that the net caught.
#[derive(Debug, Default)]
pub struct Haul {
    /// Calls that concerned files of the store.
    pub calls: BTreeMap<Catch, Made>,
    /// Programs that were executed and would gain privileges without a filter, with the privilege.
    pub gaining: BTreeMap<PathBuf, &'static str>,
}

/// What was caught, or why there was no net.
pub type Caught = io::Result<Haul>;

/// A net for one command.
pub struct Net {
    caught: Receiver<Caught>,
    is_over: Arc<AtomicBool>,
}

impl Net {
    /// Puts a net below `command`. The caller must drop `command` after starting it. `mount` is the
    /// mount prefix, `store` the directory of the store.
    pub fn below(command: &mut Command, mount: &str, store: &Path) -> io::Result<Net> {
        check_kernel()?;
        let (ours, theirs) = UnixDatagram::pair()?;
        let filter = filter();
        let set = move || {
            // If the system refuses the filter, the error is sent to the other side, and the
            // program runs without it.
            match set_filter(&filter) {
                Ok(listener) => send_descriptor(&theirs, listener.as_raw_fd()),
                Err(error) => {
                    theirs.send(&error.raw_os_error().unwrap_or(0).to_ne_bytes()).map(drop)
                }
            }
        };
        // SAFETY: between fork and exec the closure makes only system calls, on memory that was
        // allocated before the fork.
        unsafe { command.pre_exec(set) };
        let is_over = Arc::new(AtomicBool::new(false));
        let catcher = Catcher {
            mount: PathBuf::from(mount),
            handles: store.join("handles"),
            is_over: is_over.clone(),
            caught: Haul::default(),
        };
        let (sender, caught) = mpsc::channel();
        std::thread::Builder::new().spawn(move || sender.send(catcher.run(&ours)))?;
        Ok(Net { caught, is_over })
    }

    /// Returns what was caught. To be called when the command has ended; processes that it left
    /// behind get a moment to end, too.
    pub fn haul(self) -> Caught {
        self.is_over.store(true, Ordering::Relaxed);
        // Bounded, because a kernel may keep the catcher waiting for a call whose caller was
        // killed.
        self.caught
            .recv_timeout(2 * PATIENCE)
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Checks that the kernel can continue calls that it stopped. Errors: it is too old for that.
fn check_kernel() -> io::Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= KERNEL_OLDEST => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel is older than Linux 5.5")),
    }
}

/// Returns a filter that stops the calls that are known to be about files.
fn filter() -> Vec<libc::sock_filter> {
    let mut filter = Filter::new(libc::SECCOMP_RET_ALLOW);
    for call in KERNEL_CALLS {
        filter.rule(call.number, libc::SECCOMP_RET_USER_NOTIF);
    }
    filter.finish(libc::SECCOMP_RET_ALLOW)
}

/// Installs the filter for this thread and everything it starts. Returns the descriptor that
/// announces stopped calls.
fn set_filter(steps: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let listener = seccomp::install(steps, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let listener = RawFd::try_from(listener).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just created this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// Control data for one descriptor: a header of 16 bytes, and 4 bytes padded to the alignment.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Returns a message of four bytes with space for a descriptor.
fn message(bytes: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: msghdr is plain data, for which all-zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

fn send_descriptor(socket: &UnixDatagram, descriptor: RawFd) -> io::Result<()> {
    let mut zero = [0_u8; 4];
    let mut bytes = libc::iovec { iov_base: zero.as_mut_ptr().cast(), iov_len: zero.len() };
    let mut control = Control([0; 24]);
    let message = message(&mut bytes, &mut control);
    // SAFETY: the control data has space for one header and one descriptor. All parts of the
    // message live until sendmsg returns.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a descriptor; None if the sender is gone. Errors: the errno that was sent instead.
fn receive_descriptor(socket: &UnixDatagram) -> io::Result<Option<OwnedFd>> {
    let mut errno = [0_u8; 4];
    let mut bytes = libc::iovec { iov_base: errno.as_mut_ptr().cast(), iov_len: errno.len() };
    let mut control = Control([0; 24]);
    let mut message = message(&mut bytes, &mut control);
    // SAFETY: all parts of the message live until the call returns.
    let received =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    // SAFETY: the kernel has filled the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    match (received, header) {
        (..0, _) => Err(io::Error::last_os_error()),
        (0, _) => Ok(None),
        (_, Some(header)) if header.cmsg_type == libc::SCM_RIGHTS => {
            // SAFETY: a message of this type carries a descriptor, which the kernel has just
            // created for us.
            Ok(Some(unsafe {
                OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())
            }))
        }
        _ => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
    }
}

/// Examines the stopped calls.
struct Catcher {
    mount: PathBuf,
    /// Directory of the placeholder descriptors' files.
    handles: PathBuf,
    is_over: Arc<AtomicBool>,
    caught: Haul,
}

impl Catcher {
    fn run(mut self, socket: &UnixDatagram) -> Caught {
        // No descriptor means that the command could not be started.
        let Some(listener) = self.receive(socket)? else { return Ok(self.caught) };
        let mut over_since = None;
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                let since = *over_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Ok(self.caught);
                }
            }
            let mut wait =
                libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer refers to one live entry.
            unsafe { libc::poll(&raw mut wait, 1, LOOK_EVERY_MS) };
            if wait.revents & libc::POLLIN != 0 {
                self.take(&listener);
            } else if wait.revents != 0 {
                // No process is below the filter any more.
                return Ok(self.caught);
            }
        }
    }

    /// Waits for the descriptor; gives up if the command could not be started.
    fn receive(&self, socket: &UnixDatagram) -> io::Result<Option<OwnedFd>> {
        loop {
            let mut wait =
                libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer refers to one live entry.
            unsafe { libc::poll(&raw mut wait, 1, LOOK_EVERY_MS) };
            match wait.revents & libc::POLLIN != 0 {
                true => return receive_descriptor(socket),
                false if self.is_over.load(Ordering::Relaxed) => return Ok(None),
                false => {}
            }
        }
    }

    /// Examines one call and continues it.
    fn take(&mut self, listener: &OwnedFd) {
        // SAFETY: seccomp_notif is plain data; the kernel requires it to be zero.
        let mut stopped: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        let receive = libc::SECCOMP_IOCTL_NOTIF_RECV;
        // SAFETY: the request fills one such structure, which is live. It fails if the caller was
        // killed meanwhile.
        if unsafe { libc::ioctl(listener.as_raw_fd(), receive, &raw mut stopped) } != 0 {
            return;
        }
        self.examine_program(&stopped);
        if let Some((catch, path)) = self.examine(&stopped) {
            let made = self.caught.calls.entry(catch).or_insert(Made { times: 0, path });
            made.times += 1;
        }
        // SAFETY: seccomp_notif_resp is plain data, for which all-zero is a valid value.
        let mut go_on: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
        go_on.id = stopped.id;
        go_on.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        // SAFETY: the request reads one such structure, which is live. An error is ignored: a
        // caller that was killed needs no answer.
        unsafe {
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut go_on)
        };
    }

    /// Returns the call and its path if it concerns a file of the store. If the caller changes its
    /// memory meanwhile, a call can only be overlooked.
    fn examine(&self, stopped: &libc::seccomp_notif) -> Option<(Catch, Option<PathBuf>)> {
        let data = &stopped.data;
        let call = kernel_calls::of_number(data.nr.into())?;
        let path = call.paths.iter().find_map(|&place| self.path(stopped.pid, data.args[place]));
        let concerns_us = path.is_some()
            || call.number == kernel_calls::RING
            || self.is_on_descriptor(stopped, call)
                && !is_serving(stopped.pid, data.instruction_pointer);
        let of_process = |name: &str| format!("/proc/{}/{name}", stopped.pid);
        let catch = || Catch {
            call: call.name,
            program: fs::read_to_string(of_process("comm"))
                .unwrap_or_default()
                .trim_end()
                .to_owned(),
            file: fs::read_link(of_process("exe")).unwrap_or_default().display().to_string(),
        };
        concerns_us.then(|| (catch(), path))
    }

    /// Notes an executed program that would gain privileges.
    fn examine_program(&mut self, stopped: &libc::seccomp_notif) {
        if libc::c_long::from(stopped.data.nr) != libc::SYS_execve {
            return;
        }
        let Some(path) = text_at(stopped.pid, stopped.data.args[0]) else { return };
        let directory = fs::read_link(format!("/proc/{}/cwd", stopped.pid)).unwrap_or_default();
        let path = directory.join(path);
        if let Some(rights) = rights_gained(&path) {
            self.caught.gaining.insert(path, rights);
        }
    }

    /// Returns the path at an address of a process if it leads below the mount prefix.
    fn path(&self, pid: u32, address: u64) -> Option<PathBuf> {
        let path = plain(&text_at(pid, address)?);
        path.starts_with(&self.mount).then_some(path)
    }

    fn is_on_descriptor(&self, stopped: &libc::seccomp_notif, call: &KernelCall) -> bool {
        call.descriptors.iter().any(|&place| {
            let number = stopped.data.args[place] as i32;
            let link = fs::read_link(format!("/proc/{}/fd/{number}", stopped.pid));
            number >= 0 && link.is_ok_and(|target| target.parent() == Some(&self.handles))
        })
    }
}

/// Returns the path at an address of a process; None if there is none.
fn text_at(pid: u32, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = [0; PATH_BYTES_MAX];
    let mut filled = 0;
    // Reads up to the end of a page at a time, because the next page may not be mapped.
    while filled < bytes.len() && !bytes[..filled].contains(&0) {
        let at = address.checked_add(filled as u64)?;
        let left_in_page = 4096 - (at % 4096) as usize;
        let end = bytes.len().min(filled + left_in_page);
        match memory.read_at(&mut bytes[filled..end], at) {
            Ok(0) | Err(_) => return None,
            Ok(read) => filled += read,
        }
    }
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
}

/// Whether the instruction belongs to one of the `SERVING` libraries.
fn is_serving(pid: u32, instruction: u64) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        range.is_some_and(|(start, end)| (number(start)..number(end)).contains(&instruction))
    });
    let file = line.and_then(|line| line.rsplit_once('/')).map(|(_, name)| name);
    file.is_some_and(|name| SERVING.contains(&name))
}

/// Removes `.`, `..` and empty parts from a path by its text, without looking at symbolic links.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}
