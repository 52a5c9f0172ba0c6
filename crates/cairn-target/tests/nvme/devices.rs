//! Namespaces on block devices, tested on loop devices. A test without loop devices says so and
//! passes.

use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use cairn_target::{Limits, Namespace, Subsystem};
use loop_device::LoopDevice;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::peer::{Peer, settings, subsystem};

#[expect(dead_code, reason = "other tests need the rest")]
#[path = "../../../cairn-testing/src/loop_device.rs"]
mod loop_device;

const BYTES: usize = 4 << 20;
const PAGE: usize = 4096;

/// Mechanism: a device was exported through the page cache of the target's machine. Consequence: a
/// host's writes reached the device only at a flush; a checkpoint took 2.4 times as long as on the
/// same device locally. Fix: writes bypass the cache.
#[test]
fn what_a_host_writes_goes_past_the_page_cache_of_the_targets_machine() {
    if !Peer::is_ours() {
        return;
    }
    for block_bytes in [512, PAGE as u64] {
        let Some(device) = LoopDevice::new(&std::env::temp_dir(), BYTES as u64) else { return };
        let namespace = Namespace::in_file(device.path(), block_bytes).expect("is there");
        let exported = Subsystem::new(subsystem(), vec![namespace], Limits::default());
        let fabric = TcpFabric::new(Peer::of_one(exported).address);
        let mut remote =
            Remote::connect(fabric, &subsystem(), 1, &settings(), Duration::from_secs(20))
                .expect("connected");
        let bytes: Vec<u8> = (0..BYTES / 2).map(|at| (at % 251) as u8).collect();
        for (at, part) in bytes.chunks(128 << 10).enumerate() {
            remote.write(BYTES as u64 / 4 + ((at * 128) << 10) as u64, part).expect("written");
        }
        assert_eq!(cached_pages(device.path()), 0, "with blocks of {block_bytes}");
        let mut found = vec![0; BYTES / 2];
        remote.read(BYTES as u64 / 4, &mut found).expect("read");
        assert!(found == bytes);
        remote.flush().expect("durable");
        device.backing().read_exact_at(&mut found, BYTES as u64 / 4).expect("reads");
        assert!(found == bytes);
    }
}

/// Number of pages in the middle of the device that the kernel has cached.
fn cached_pages(path: &std::path::Path) -> usize {
    let device = File::open(path).expect("is there");
    let mut resident = vec![0_u8; BYTES / 2 / PAGE];
    // SAFETY: the mapping is new and only the kernel looks at it, for as many pages as the answer
    // has room for.
    let answer = unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        let offset = (BYTES / 4) as libc::off_t;
        let at = libc::mmap(
            std::ptr::null_mut(),
            BYTES / 2,
            protection,
            flags,
            device.as_raw_fd(),
            offset,
        );
        assert_ne!(at, libc::MAP_FAILED);
        let answer = libc::mincore(at, BYTES / 2, resident.as_mut_ptr());
        libc::munmap(at, BYTES / 2);
        answer
    };
    assert_eq!(answer, 0);
    resident.iter().filter(|page| *page & 1 == 1).count()
}
