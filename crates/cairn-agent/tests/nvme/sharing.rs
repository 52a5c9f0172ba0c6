//! One namespace used by the threads of a process, and by its children.

use crate::peer::{PART_BYTES, Peer, SUBSYSTEM, pattern};
use cairn_device::nvme::claim::Claim;
use cairn_device::nvme::shared::{RemotePath, SharedRemote};
use std::path::Path;
use std::thread;

const PIECE: usize = 64 << 10;

fn open(peer: &Peer) -> SharedRemote {
    let path = format!("//{}/{SUBSYSTEM}?nsid=2", peer.address);
    let place = RemotePath::parse(Path::new(&path)).expect("a path");
    SharedRemote::open(&place, *b"tests of sharing", Claim::None).expect("connected")
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
