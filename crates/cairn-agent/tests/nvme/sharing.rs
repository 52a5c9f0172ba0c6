//! One namespace used by the threads of a process, and by its children.

use crate::peer::{PART_BYTES, Peer, SUBSYSTEM, pattern};
use cairn_agent::target::Resources;
use cairn_device::descriptor::Descriptor;
use cairn_device::mapping::Mapping;
use cairn_device::nvme::claim::Claim;
use cairn_device::nvme::line::Line;
use cairn_device::nvme::shared::{RemotePath, SharedRemote};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const PIECE: usize = 64 << 10;

const HOST: [u8; 16] = *b"tests of sharing";

fn place(peer: &Peer) -> RemotePath {
    let path = format!("//{}/{SUBSYSTEM}?nsid=2", peer.address);
    RemotePath::parse(Path::new(&path)).expect("a path")
}

fn open(peer: &Peer) -> SharedRemote {
    SharedRemote::open(&place(peer), HOST, Claim::None).expect("connected")
}

/// Writes bytes of this seed to a place of their own and reads them back.
fn use_it(remote: &SharedRemote, seed: u64) -> bool {
    let at = 5 * PART_BYTES + seed * PIECE as u64;
    let bytes = pattern(seed, PIECE);
    let mut again = vec![0; PIECE];
    // SAFETY: both are this function's alone.
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

/// Which ports the sockets have.
fn ports(remote: &SharedRemote) -> Vec<u16> {
    let mut numbers = Vec::new();
    remote.descriptors(&mut |number| numbers.push(number));
    let port = |number| {
        // SAFETY: plain integers, for which zero is a value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: the kernel writes at most so many bytes to the address, and their number.
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
            // SAFETY: the child uses the namespace and ends. No other thread of this test holds a lock of the allocator
            // that the child could wait for: glibc makes its locks usable in children.
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

/// Mechanism: a process that had a connection kept it until its end. Consequence: where the target gives no more, another one failed
/// after half a minute, however little it wanted. Fix: who has had a connection for a while gives it up to those who wait in line.
#[test]
fn connection_is_given_up_to_who_waits_for_one_and_made_again() {
    // Room for the two of one host.
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
