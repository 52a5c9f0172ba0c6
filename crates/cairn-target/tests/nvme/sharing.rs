//! One namespace used by the threads of a process and by its children.

use cairn_nvme::Error;
use cairn_nvme::claim::Claim;
use cairn_nvme::shared::{RemotePath, SharedRemote};
use cairn_nvme::wait_queue::Line;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::Mapping;
use cairn_target::{Limits, Namespace, Resources, Subsystem};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::peer::{PART_BYTES, Peer, SUBSYSTEM, pattern, subsystem};
use crate::proxy::{Harm, Proxy};

const PIECE: usize = 64 << 10;

const HOST: [u8; 16] = *b"tests of sharing";

fn place(peer: &Peer) -> RemotePath {
    let path = format!("//{}/{SUBSYSTEM}?nsid=2", peer.address);
    RemotePath::parse(Path::new(&path)).expect("a path")
}

fn open(peer: &Peer) -> SharedRemote {
    SharedRemote::open(&place(peer), HOST, Claim::None).expect("connected")
}

/// Writes the bytes of this seed to a place of their own and reads them back.
fn use_it(remote: &SharedRemote, seed: u64) -> bool {
    let at = 5 * PART_BYTES + seed * PIECE as u64;
    let bytes = pattern(seed, PIECE);
    let mut again = vec![0; PIECE];
    // SAFETY: both buffers belong to this function alone.
    let done = unsafe {
        let written = remote.write(bytes.as_ptr(), PIECE, at);
        written.and_then(|()| remote.read(again.as_mut_ptr(), PIECE, at))
    };
    done.and_then(|()| remote.flush()).is_ok() && again == bytes
}

#[test]
fn threads_take_turns() {
    let peer = Peer::start();
    let remote = open(&peer);
    thread::scope(|scope| {
        for thread in 0..4 {
            let remote = &remote;
            scope.spawn(move || {
                let is_fine = (0..8).all(|round| use_it(remote, thread * 8 + round));
                assert!(is_fine, "thread {thread}");
            });
        }
    });
}

/// Returns the local ports of the connections.
fn ports(remote: &SharedRemote) -> Vec<u16> {
    let mut numbers = Vec::new();
    remote.descriptors(&mut |number| numbers.push(number));
    let port = |number| {
        // SAFETY: the fields are plain integers, for which zero is a valid value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to the address, and their number to
        // `length`.
        unsafe { libc::getsockname(number, (&raw mut address).cast(), &raw mut length) };
        address.sin_port
    };
    numbers.into_iter().map(port).collect()
}

#[test]
fn children_have_connections_of_their_own_and_leave_that_of_their_parent_alone() {
    let peer = Peer::start();
    let remote = open(&peer);
    assert!(use_it(&remote, 40));
    let before = ports(&remote);
    let children: Vec<i32> = (41..44)
        .map(|seed| {
            // SAFETY: the child uses the namespace and ends. No other thread of this test holds an
            // allocator lock that the child could wait for: glibc makes its locks usable in
            // children.
            match unsafe { libc::fork() } {
                0 => {
                    let is_fine = use_it(&remote, seed);
                    let are_new = ports(&remote).iter().all(|port| !before.contains(port));
                    // SAFETY: ends the child without the parent's exit handlers.
                    unsafe { libc::_exit(i32::from(!is_fine) + 2 * i32::from(!are_new)) }
                }
                child => child,
            }
        })
        .collect();
    assert!((44..48).all(|seed| use_it(&remote, seed)), "meanwhile");
    for child in children {
        let mut status = -1;
        // SAFETY: `status` receives one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
    assert!(use_it(&remote, 48), "afterwards");
    assert_eq!(ports(&remote), before, "the parent's connection was never broken");
}

/// Mechanism: a process kept its connection until its end.
///
/// Consequence: if the target accepted no more connections, another process failed after half a
/// minute, however little it wanted.
///
/// Fix: a process that has had a connection for a while gives it up to those who wait in line.
#[test]
fn connection_is_given_up_to_who_waits_for_one_and_made_again() {
    // Room for the two connections of one host.
    let resources = Resources { connections_max: 2, ..Resources::default() };
    let Some(peer) = Peer::with(resources) else { return };
    let first = open(&peer);
    let known = SharedRemote::known(&place(&peer), HOST, Claim::None, first.traits());
    let second = known.expect("prepared");
    let file = std::env::temp_dir().join(format!("cairn-line-{}", std::process::id()));
    for remote in [&first, &second] {
        remote.wait_in(line(&file));
    }
    std::fs::remove_file(&file).expect("is there");
    let is_served = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut is_fine = true;
            while is_fine && !is_served.load(Ordering::Relaxed) {
                is_fine = use_it(&first, 50);
            }
            is_fine && use_it(&first, 51)
        });
        let is_fine = use_it(&second, 52);
        is_served.store(true, Ordering::Relaxed);
        drop(second);
        assert!(is_fine && busy.join().expect("has ended"));
    });
}

fn line(path: &Path) -> Line {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("has room");
    file.set_len(4096).expect("has room");
    Line::new(Mapping::new(Descriptor::from_raw(file.into_raw_fd()), 4096).expect("mapped"), 0)
}

#[test]
fn part_of_a_namespace_without_a_page_has_nothing() {
    if !Peer::is_ours() {
        return;
    }
    let small = Namespace::in_memory(2048, 512).expect("there is memory");
    let peer = Peer::of_one(Subsystem::new(subsystem(), vec![small], Limits::default()));
    let path = format!("//{}/{SUBSYSTEM}?nsid=1&part=1/2", peer.address);
    let place = RemotePath::parse(Path::new(&path)).expect("a path");
    assert_eq!(SharedRemote::open(&place, HOST, Claim::None).expect("connected").bytes(), 0);
}

fn known(peer: &Peer, address: SocketAddr, claim: Claim) -> SharedRemote {
    let traits = *open(peer).traits();
    SharedRemote::known(&RemotePath { address, ..place(peer) }, HOST, claim, &traits)
        .expect("prepared")
}

/// Mechanism: a process checked only once that the namespace is the one it knows. Consequence:
/// after its connection had broken, it went on writing to a namespace that belonged to another
/// store by then. Fix: it checks on every connection.
#[test]
fn namespace_is_looked_at_on_every_connection_before_it_is_used() {
    let peer = Peer::start();
    let proxy = Proxy::calm(peer.address);
    let remote = known(&peer, proxy.address, Claim::None);
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    remote.check_first(Box::new(move |view| {
        view.read(0, &mut [0; 4096])?;
        Ok(counted.fetch_add(1, Ordering::SeqCst) < 2)
    }));
    assert!(use_it(&remote, 60) && use_it(&remote, 61));
    assert_eq!(looks.load(Ordering::SeqCst), 1);
    proxy.arm(Harm::Break, 1);
    assert!(use_it(&remote, 62), "it is the same");
    assert_eq!(looks.load(Ordering::SeqCst), 2);
    proxy.arm(Harm::Break, 1);
    // SAFETY: the page is readable.
    let refused = unsafe { remote.write([7; 4096].as_ptr(), 4096, 5 * PART_BYTES) };
    assert!(matches!(refused, Err(Error::Unsuitable { .. })), "{refused:?}");
}

/// Number of processes that ever joined a line: the first word of its file.
fn joined(path: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("is there");
    u64::from_le_bytes(*bytes.first_chunk().expect("a word"))
}

/// Mechanism: a process whose connection broke made another one without joining the line.
/// Consequence: it overtook those who waited, or never got a turn where the target accepted no
/// more. Fix: every connection is made in turn.
#[test]
fn who_has_lost_its_connection_joins_the_line_of_those_who_wait() {
    let peer = Peer::start();
    let proxy = Proxy::calm(peer.address);
    let remote = known(&peer, proxy.address, Claim::None);
    let file = std::env::temp_dir().join(format!("cairn-line-broken-{}", std::process::id()));
    remote.wait_in(line(&file));
    remote.reach().expect("connected, and kept whoever waits");
    let others = line(&file);
    let other = others.join(Duration::from_secs(1));
    proxy.arm(Harm::Break, 1);
    thread::scope(|scope| {
        let writer = scope.spawn(|| use_it(&remote, 63));
        while joined(&file) < 2 && !writer.is_finished() {
            thread::yield_now();
        }
        assert_eq!(joined(&file), 2, "it has passed who waits");
        drop(other);
        assert!(writer.join().expect("has ended"));
    });
    std::fs::remove_file(&file).expect("is there");
}
