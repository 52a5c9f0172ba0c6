//! All operations of a queue, with and without digests and flow control, at the sizes at which data
//! transfer changes its form.

use cairn_nvme::Error;
use cairn_nvme::controller::{Controller, Settings, discover};
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::{Nqn, Status};
use cairn_target::Limits;

use crate::peer::{
    NAMESPACE_BYTES, NAMESPACES, PART_BYTES, Peer, pattern, round_trip, settings, subsystem,
};

#[test]
fn controller_is_identified_and_lists_its_namespaces() {
    let peer = Peer::start();
    let mut controller = peer.controller();
    assert_eq!(controller.identity().subsystem, Some(subsystem()));
    assert!(controller.identity().capsule_data_bytes >= 4096);
    let numbers: Vec<u32> = NAMESPACES.iter().map(|(number, _)| *number).collect();
    assert_eq!(controller.namespaces().unwrap(), numbers);
    for (number, block_bytes) in NAMESPACES {
        let namespace = controller.namespace(number).unwrap();
        assert_eq!((namespace.block_bytes(), namespace.bytes()), (block_bytes, NAMESPACE_BYTES));
    }
    controller.keep_alive().unwrap();
    controller.shut_down().unwrap();
}

#[test]
fn subsystem_is_discovered_where_it_was_asked_for() {
    let peer = Peer::start();
    let entries = discover(peer.fabric(), &settings()).unwrap();
    let found = entries.iter().find(|entry| entry.subsystem == subsystem());
    assert!(found.is_some_and(|entry| entry.transport == 3), "{entries:?}");
}

#[test]
fn what_does_not_exist_is_refused() {
    let peer = Peer::start();
    let other = Nqn::new("nqn.2026-11.io.cairn:nothing").unwrap();
    match Controller::connect(peer.fabric(), &other, &settings()) {
        Err(Error::Refused { status, .. }) => assert_eq!(status.code(), Status::CONNECT_INVALID),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let mut controller = peer.controller();
    for number in [3, 1000] {
        assert!(controller.namespace(number).is_err(), "{number}");
    }
    let mut queue = controller.queue(1).unwrap();
    let mut block = [0; 512];
    assert_eq!(queue.read(NAMESPACE_BYTES, &mut block), Err(Error::Invalid));
    assert_eq!(queue.read(1, &mut block), Err(Error::Invalid));
    assert_eq!(queue.write(0, &block[..100]), Err(Error::Invalid));
    queue.read(NAMESPACE_BYTES - 512, &mut block).unwrap();
}

/// Runs a test over every variant of a connection.
fn each_connection(peer: &Peer, mut test: impl FnMut(&mut Controller<TcpFabric>, &str)) {
    for variant in 0..8 {
        let is = |bit: u32| variant & 1 << bit != 0;
        let fabric = TcpFabric { header_digest: is(0), data_digest: is(1), ..peer.fabric() };
        let settings = Settings { without_flow_control: is(2), ..settings() };
        let mut controller = Controller::connect(fabric, &subsystem(), &settings).unwrap();
        test(&mut controller, &format!("{fabric:?}, without flow control: {}", is(2)));
        controller.shut_down().unwrap();
    }
}

#[test]
fn bytes_are_read_back_whatever_their_number() {
    let peer = Peer::start();
    let source = pattern(1, 2 << 20);
    let mut number_of_try = 0;
    each_connection(&peer, |controller, variant| {
        println!("{variant}");
        for (number, block_bytes) in NAMESPACES {
            let mut queue = controller.queue(number).unwrap();
            let block = block_bytes as usize;
            let capsule = controller.identity().capsule_data_bytes as usize / block * block;
            let most = queue.traits().transfer_bytes_max as usize;
            let sizes = [block, capsule - block, capsule, capsule + block, most, most + block];
            for size in sizes {
                number_of_try += 1;
                let bytes = &source[number_of_try..][..size];
                round_trip(&mut queue, number_of_try as u64 % 4 * block_bytes, bytes);
            }
        }
    });
}

#[test]
fn commands_under_way_at_the_same_time_do_not_mix() {
    const PIECES: usize = 256;
    const PIECE: usize = 16 << 10;
    let peer = Peer::start();
    let mut controller = peer.controller();
    let mut queue = controller.queue(2).unwrap();
    let at = |index: usize| PART_BYTES + (index * 89 % PIECES * PIECE) as u64;
    let source: Vec<Vec<u8>> = (0..PIECES).map(|index| pattern(index as u64, PIECE)).collect();
    let mut target = vec![vec![0_u8; PIECE]; PIECES];
    let mut under_way = 0;
    for (index, bytes) in source.iter().enumerate() {
        while under_way == queue.depth() {
            assert!(queue.wait().unwrap().status.is_success());
            under_way -= 1;
        }
        // SAFETY: the source lives until all commands have ended.
        unsafe { queue.submit_write(at(index), bytes.as_ptr(), PIECE) }.unwrap();
        under_way += 1;
    }
    (0..under_way).for_each(|_| assert!(queue.wait().unwrap().status.is_success()));
    under_way = 0;
    for (index, bytes) in target.iter_mut().enumerate() {
        while under_way == queue.depth() {
            assert!(queue.wait().unwrap().status.is_success());
            under_way -= 1;
        }
        // SAFETY: nobody looks at the target buffer before all commands have ended.
        unsafe { queue.submit_read(at(index), bytes.as_mut_ptr(), PIECE) }.unwrap();
        under_way += 1;
    }
    (0..under_way).for_each(|_| assert!(queue.wait().unwrap().status.is_success()));
    assert!(source == target);
}

#[test]
fn zeroes_are_written_where_they_belong_and_the_rest_stays() {
    let peer = Peer::start();
    let mut controller = peer.controller();
    for (number, block_bytes) in NAMESPACES {
        let mut queue = controller.queue(number).unwrap();
        let (start, length) = (2 * PART_BYTES, 64 * block_bytes);
        for may_deallocate in [false, true] {
            let before = pattern(7, length as usize);
            queue.write(start, &before).unwrap();
            let (from, to) = (block_bytes, 17 * block_bytes);
            queue.write_zeroes(start + from, to - from, may_deallocate).unwrap();
            let mut after = vec![1; length as usize];
            queue.read(start, &mut after).unwrap();
            let (from, to) = (from as usize, to as usize);
            assert!(after[from..to].iter().all(|&byte| byte == 0));
            assert!(after[..from] == before[..from] && after[to..] == before[to..]);
        }
    }
}

#[test]
fn discarding_and_flushing_leave_everything_else_as_it_was() {
    let peer = Peer::start();
    let mut controller = peer.controller();
    for (number, block_bytes) in NAMESPACES {
        let mut queue = controller.queue(number).unwrap();
        assert!(queue.traits().can_deallocate && queue.traits().has_volatile_cache);
        let (start, length) = (3 * PART_BYTES, 64 * block_bytes);
        let before = pattern(9, length as usize);
        queue.write(start, &before).unwrap();
        queue.flush().unwrap();
        queue.discard(start + 8 * block_bytes, 8 * block_bytes).unwrap();
        let mut after = vec![0; length as usize];
        queue.read(start, &mut after).unwrap();
        let hole = 8 * block_bytes as usize..16 * block_bytes as usize;
        assert!(after[..hole.start] == before[..hole.start]);
        assert!(after[hole.end..] == before[hole.end..]);
    }
}

#[test]
fn small_limits_of_a_target_are_kept_to() {
    let limits = Limits {
        capsule_data_bytes: 0,
        host_data_bytes: 4096,
        transfer_shift: 2,
        entries: 4,
        queues: 1,
        awaited_bytes: 20_000,
    };
    let Some(peer) = Peer::limited(limits) else { return };
    let source = pattern(2, 1 << 20);
    each_connection(&peer, |controller, variant| {
        println!("{variant}");
        let mut queue = controller.queue(1).unwrap();
        assert_eq!((queue.depth(), queue.traits().transfer_bytes_max), (3, 16 << 10));
        for size in [512, 4096, 4608, 16 << 10, 333 * 512] {
            round_trip(&mut queue, 512, &source[size..][..size]);
        }
        let refused = controller.queue(1).map(|_| ());
        assert!(matches!(refused, Err(Error::Unsuitable { .. })), "{refused:?}");
    });
}
