//! Targets whose machine is rebooted: writes that were not flushed may be lost. Only Cairn's target
//! reports this.

use cairn_nvme::Error;
use cairn_nvme::controller::Settings;
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::peer::{Exported, Peer, pattern, settings, subsystem};
use crate::proxy::{Harm, Proxy};

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: u64 = 1 << 20;
const PIECE: usize = 64 << 10;

/// A machine that exports a file, reached through a proxy.
struct Machine {
    path: PathBuf,
    exported: Option<Exported>,
    proxy: Proxy,
}

impl Machine {
    fn new(name: &str) -> Machine {
        let path = std::env::temp_dir().join(format!("cairn-nvme-{name}-{}", std::process::id()));
        std::fs::write(&path, vec![0; BYTES as usize]).expect("has room");
        let exported = Exported::since(&path, [1; 16]);
        let proxy = Proxy::calm(exported.address);
        Machine { path, exported: Some(exported), proxy }
    }

    /// Ends the target, restores the file to its durable content, and starts a target of a new
    /// boot.
    fn is_started_again(&mut self, start: u8, on_disk: &[u8]) {
        self.exported.take().expect("there is always one").end();
        std::fs::write(&self.path, on_disk).expect("has room");
        let exported = Exported::since(&self.path, [start; 16]);
        self.proxy.retarget(exported.address);
        self.proxy.arm(Harm::Break, 1);
        self.exported = Some(exported);
    }

    /// Ends the target, as an administrator does, and starts another one on the same file.
    fn has_its_target_replaced(&mut self) {
        self.exported.take().expect("there is always one").end();
        let exported = Exported::since(&self.path, [1; 16]);
        self.proxy.retarget(exported.address);
        self.exported = Some(exported);
    }

    fn on_disk(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("is there")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("is there");
    }
}

type Host = Remote<TcpFabric>;

fn connect(address: SocketAddr, settings: &Settings) -> Host {
    let fabric = TcpFabric::new(address);
    Remote::connect(fabric, &subsystem(), 2, settings, PATIENCE).expect("connected")
}

fn may_be_stale<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unsuitable { why }) if why.contains("started again"))
}

/// Reads bytes that may be old; returns whether they may be.
fn read_anyway(host: &mut Host) -> (bool, Vec<u8>) {
    let mut found = vec![1; PIECE];
    // SAFETY: the vector is writable and used here only.
    let doubt = unsafe { host.read_unverified(0, found.as_mut_ptr(), PIECE) };
    (doubt.expect("reads"), found)
}

/// Mechanism: a flush on a new connection did not know what the target's machine had lost with its
/// memory. Consequence: the flush succeeded, and old data were read as if they were what had been
/// written. Fix: the target reports the boot of its machine. For a host that used the target of an
/// earlier boot, reads, writes and flushes fail; only `read_unverified` returns data, as possibly
/// old.
#[test]
fn what_a_target_had_in_memory_when_its_machine_was_started_again_is_not_believed() {
    if !Peer::is_ours() {
        return;
    }
    let mut machine = Machine::new("reboot");
    let settings = settings();
    let mut host = connect(machine.proxy.address, &settings);
    let (traits, bytes) = (*host.traits(), pattern(1, PIECE));
    host.write(0, &bytes).expect("written");
    assert_eq!(read_anyway(&mut host), (false, bytes.clone()));
    machine.is_started_again(2, &vec![0; BYTES as usize]);
    assert!(may_be_stale(host.flush()), "nobody knows what is there");
    let mut found = vec![1; PIECE];
    assert!(may_be_stale(host.read(0, &mut found)) && may_be_stale(host.write(0, &bytes)));
    assert!(may_be_stale(host.flush()), "nor later");
    assert_eq!(read_anyway(&mut host), (true, vec![0; PIECE]));
    let fabric = TcpFabric::new(machine.proxy.address);
    let mut late = Remote::known(fabric, &subsystem(), &settings, PATIENCE, &traits);
    assert!(may_be_stale(late.read(0, &mut found)), "a process that was never connected before");
    let mut anew = connect(machine.proxy.address, &settings);
    anew.write(0, &bytes).and_then(|()| anew.flush()).expect("it expects nothing");
}

#[test]
fn what_a_target_had_in_memory_is_believed_when_it_was_started_again_on_the_same_machine() {
    if !Peer::is_ours() {
        return;
    }
    let mut machine = Machine::new("restart");
    let mut host = connect(machine.proxy.address, &settings());
    let bytes = pattern(2, PIECE);
    host.write(0, &bytes).expect("written");
    machine.is_started_again(1, &machine.on_disk());
    host.flush().expect("the machine remembers");
    assert_eq!(read_anyway(&mut host), (false, bytes));
}

/// Mechanism: a target that is told to end completes its event requests. The host took that
/// completion for a refusal of its current command.
///
/// Consequence: programs got EIO for good whenever a target was ended in an orderly way, but not
/// when it was killed.
#[test]
fn target_that_says_that_it_ends_is_waited_for() {
    let mut machine = Machine::new("ends");
    let mut host = connect(machine.proxy.address, &settings());
    host.write(0, &pattern(1, PIECE)).unwrap();
    machine.has_its_target_replaced();
    // By then the host polls for messages of the target again.
    std::thread::sleep(Duration::from_millis(101));
    host.write(0, &pattern(2, PIECE)).unwrap();
    host.flush().unwrap();
    assert!(machine.on_disk()[..PIECE] == pattern(2, PIECE));
}
