//! An image of a real store that one process reads while another one writes. The image shows the
//! state at the cut, and no call without those that had returned before it. A writer that needs the
//! image's space gets it.

mod common;

use cairn_core::{ImageLoss, ImageState, InodeId, ROOT};
use cairn_device::store::namespace::{open_image, open_namespace};
use cairn_device::{Namespace, Store};
use cairn_platform::checksum;
use cairn_posix::data::io::At;
use cairn_posix::files::{file, names};
use common::*;

/// Longer than a hugeblock, and not a multiple of any unit.
const BYTES: usize = 3 * HUGEBLOCK + 777;

fn store() -> Store {
    Store::open(store_path()).unwrap()
}

/// Returns all bytes of a file of the image. Checks each block that has a checksum.
fn content(image: &Namespace, inode: InodeId) -> Vec<u8> {
    let size = image.fs.attributes(inode).unwrap().size;
    let mut bytes = vec![0; size as usize];
    let mut at = 0;
    while at < size {
        let plan = image.fs.plan_read_of(inode, at, size - at).unwrap();
        for run in plan.runs() {
            if let Some((tier, offset)) = run.source {
                let target = bytes[at as usize..].as_mut_ptr();
                // SAFETY: the rest of `bytes` is longer than the run.
                unsafe { image.tier(tier).unwrap().read(offset, target, run.bytes as usize) }
                    .unwrap();
            }
            at += run.bytes;
        }
    }
    let mut stored = vec![None; bytes.len().div_ceil(HUGEBLOCK)];
    image.fs.checksums(inode, 0, &mut stored).unwrap();
    for (block, stored) in bytes.chunks(HUGEBLOCK).zip(stored) {
        let mut block = block.to_vec();
        block.resize(HUGEBLOCK, 0);
        assert!(stored.is_none_or(|stored| stored == checksum::crc32c(0, &block)));
    }
    image.fs.require_image().unwrap();
    bytes
}

fn inode(image: &Namespace, name: &str) -> InodeId {
    image.fs.resolve(&caller(), ROOT, name.as_bytes(), false).unwrap()
}

fn await_settled(namespace: &Namespace) {
    while !namespace.fs.image_is_settled().unwrap() {
        std::thread::yield_now();
    }
}

#[test]
fn process_changes_everything_then_the_image_in_another_is_what_was_there() {
    let _turn = turn();
    let writable = |name: &str| open(name, libc::O_RDWR).unwrap();
    for name in ["over", "behind", "cut", "gone", "moved"] {
        put(name, &pattern(BYTES, name.len()));
    }
    let agents = open_namespace(&store(), "node").unwrap();
    agents.fs.begin_image().unwrap();
    let status = forked(|| {
        for round in 0..20 {
            let over = writable("over");
            for at in (0..BYTES - 500).step_by(4999) {
                assert_eq!(write_at(over, &[round; 500], At::Offset(at as u64)), Ok(500));
            }
            close(over);
            let behind = open("behind", libc::O_WRONLY | libc::O_APPEND).unwrap();
            (0..100).for_each(|_| assert_eq!(write(behind, &[round; 100]), Ok(100)));
            close(behind);
            let cut = writable("cut");
            file::truncate_handle(handle(cut), 40_000 - u64::from(round) as i64).unwrap();
            write_at(cut, &[round; 10], At::Offset(50_000)).unwrap();
            close(cut);
            put(&format!("new{round}"), &[round; 5000]);
        }
        names::unlink(&at("gone")).unwrap();
        put("moved", b"another");
    });
    assert_eq!(status, 0);
    let image = open_image(&store(), &agents).unwrap();
    await_settled(&agents);
    for name in ["over", "behind", "cut", "gone", "moved"] {
        let found = content(&image, inode(&image, name));
        assert!(found == pattern(BYTES, name.len()), "{name}");
    }
    assert!(image.fs.resolve(&caller(), ROOT, b"new0", false).is_err());
    assert!(agents.fs.image_blocks_held().unwrap() > 0);
    mount().fs().check().unwrap();
    agents.fs.end_image().unwrap();
    assert!(image.fs.require_image().is_err());
    for name in ["over", "behind", "cut", "moved"] {
        remove(name);
    }
    (0..20).for_each(|round| remove(&format!("new{round}")));
}

#[test]
fn cut_while_records_go_to_two_files_in_turn_has_no_record_without_the_one_before_it() {
    const CUTS: usize = 40;
    const RECORD: usize = 40;
    let _turn = turn();
    let logs = ["first", "second"].map(create);
    let agents = open_namespace(&store(), "node").unwrap();
    let stop = create("stop");
    // SAFETY: the child leaves without the parent's exit handlers.
    let spawn = cairn_posix::process::Spawn::begin().unwrap();
    // SAFETY: as above.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        spawn.child();
        let mut number = 0_u64;
        while file::stat(&at("stop"), true).is_ok_and(|stat| stat.size == 0) && number < 100_000 {
            number += 1;
            let record = [number.to_le_bytes(); RECORD / 8].concat();
            logs.iter().for_each(|&log| assert_eq!(write(log, &record), Ok(RECORD)));
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    spawn.parent(pid);
    let mut longest = 0;
    for _ in 0..CUTS {
        agents.fs.begin_image().unwrap();
        let image = open_image(&store(), &agents).unwrap();
        await_settled(&agents);
        let [first, second] = ["first", "second"].map(|name| content(&image, inode(&image, name)));
        let records = |bytes: &[u8]| bytes.len() / RECORD;
        assert_eq!((first.len() % RECORD, second.len() % RECORD), (0, 0));
        assert!(records(&first) == records(&second) || records(&first) == records(&second) + 1);
        for bytes in [&first, &second] {
            for (number, record) in (1_u64..).zip(bytes.chunks(RECORD)) {
                assert!(record == [number.to_le_bytes(); RECORD / 8].concat(), "record {number}");
            }
        }
        longest = longest.max(records(&first));
        agents.fs.end_image().unwrap();
    }
    write(stop, b"!").unwrap();
    let mut status = 0;
    // SAFETY: `status` receives one int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert!(longest > 0, "nothing was written meanwhile");
    logs.into_iter().chain([stop]).for_each(close);
    ["first", "second", "stop"].into_iter().for_each(remove);
}

#[test]
fn program_that_needs_the_room_of_an_image_gets_it() {
    let _turn = turn();
    let chunk = pattern(HUGEBLOCK, 3);
    let file = create("full");
    let mut full = 0;
    while write(file, &chunk) == Ok(HUGEBLOCK) {
        full += HUGEBLOCK;
    }
    let agents = open_namespace(&store(), "node").unwrap();
    agents.fs.begin_image().unwrap();
    for at in (0..full).step_by(HUGEBLOCK) {
        assert_eq!(write_at(file, &pattern(HUGEBLOCK, 9), At::Offset(at as u64)), Ok(HUGEBLOCK));
    }
    assert!(matches!(agents.fs.image(), ImageState::Lost(_, ImageLoss::NoSpace)));
    agents.fs.end_image().unwrap();
    // Growing a file that was truncated within a block takes the image's space, too.
    let short = full - HUGEBLOCK + 1000;
    file::truncate_handle(handle(file), short as i64).unwrap();
    agents.fs.begin_image().unwrap();
    file::truncate_handle(handle(file), full as i64).unwrap();
    assert!(matches!(agents.fs.image(), ImageState::Lost(_, ImageLoss::NoSpace)));
    agents.fs.end_image().unwrap();
    // So does writing a new file to the blocks that another one held when the image began.
    close(file);
    agents.fs.begin_image().unwrap();
    remove("full");
    put("next", &pattern(full, 5));
    assert!(get("next") == pattern(full, 5));
    assert!(matches!(agents.fs.image(), ImageState::Lost(_, ImageLoss::NoSpace)));
    agents.fs.end_image().unwrap();
    mount().fs().check().unwrap();
    remove("next");
    put("again", &pattern(full, 6));
    remove("again");
}
