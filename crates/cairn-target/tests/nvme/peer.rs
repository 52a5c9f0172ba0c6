//! The target under test, and hosts that connect to it.

use cairn_nvme::controller::{Controller, Settings};
use cairn_nvme::queue::Queue;
use cairn_nvme::secret::HostSecrets;
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::wire::Nqn;
use cairn_target::{Directory, Guard, Limits, Namespace, Resources, Stop, Subsystem, Target};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Environment variable with the address of another target.
const PEER_VARIABLE: &str = "CAIRN_NVME_PEER";
/// Subsystem that every peer exports.
pub const SUBSYSTEM: &str = "nqn.2026-11.io.cairn:interop";
/// Subsystem for authenticated hosts.
const GUARDED: &str = "nqn.2026-11.io.cairn:guarded";
/// Namespaces of both subsystems: number and block size in bytes.
pub const NAMESPACES: [(u32, u64); 2] = [(1, 512), (2, 4096)];
/// Size of each namespace, bytes.
pub const NAMESPACE_BYTES: u64 = 64 << 20;
/// Size of the part that a test has for itself, bytes.
pub const PART_BYTES: u64 = 8 << 20;

/// Any free port of this machine.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A target, for as long as a test needs it.
pub struct Peer {
    pub address: SocketAddr,
}

impl Peer {
    pub fn start() -> Peer {
        match std::env::var(PEER_VARIABLE) {
            Ok(address) => Peer { address: address.parse().expect("an address and a port") },
            Err(_) => Peer { address: export(open(Limits::default())) },
        }
    }

    /// Starts a target that serves `guarded` to authenticated hosts. `hosts` are the lines by which
    /// our target knows them.
    pub fn start_guarded(hosts: &str) -> Peer {
        if !Peer::is_ours() {
            return Peer::start();
        }
        let hosts = HostSecrets::parse(hosts.as_bytes()).expect("hosts and their secrets");
        let subsystem = Subsystem::new(guarded(), namespaces(), Limits::default());
        Peer { address: export(subsystem.guarded(Guard::new(hosts))) }
    }

    /// Starts Cairn's target with these limits; `None` if another target is tested.
    pub fn limited(limits: Limits) -> Option<Peer> {
        Peer::is_ours().then(|| Peer { address: export(open(limits)) })
    }

    /// Starts Cairn's target with these resources; `None` if another target is tested.
    pub fn with(resources: Resources) -> Option<Peer> {
        let directory = Directory::new(Limits::default());
        directory.add(Arc::new(open(Limits::default()))).expect("the only one");
        Peer::is_ours().then(|| Peer::of(directory, resources))
    }

    /// Starts Cairn's target with these subsystems.
    pub fn of(directory: impl Into<Arc<Directory>>, resources: Resources) -> Peer {
        let mut target = Target::new(directory.into(), resources).expect("there are descriptors");
        target.listen(ANYWHERE).expect("there is a port");
        Peer { address: serve(target) }
    }

    /// Starts Cairn's target with this subsystem.
    pub fn of_one(subsystem: Subsystem) -> Peer {
        Peer { address: export(subsystem) }
    }

    /// Whether Cairn's own target is tested.
    pub fn is_ours() -> bool {
        std::env::var_os(PEER_VARIABLE).is_none()
    }

    pub fn fabric(&self) -> TcpFabric {
        TcpFabric::new(self.address)
    }

    pub fn controller(&self) -> Controller<TcpFabric> {
        Controller::connect(self.fabric(), &subsystem(), &settings()).expect("the peer is there")
    }
}

/// Returns the subsystem that is open to all hosts.
pub fn open(limits: Limits) -> Subsystem {
    Subsystem::new(subsystem(), namespaces(), limits)
}

fn namespaces() -> Vec<Namespace> {
    let in_memory = |(_, block_bytes)| {
        Namespace::in_memory(NAMESPACE_BYTES, block_bytes).expect("there is memory")
    };
    NAMESPACES.map(in_memory).into()
}

/// Starts Cairn's target, which lives as long as this process; returns its address.
fn export(subsystem: Subsystem) -> SocketAddr {
    serve(Target::bind(ANYWHERE, Arc::new(subsystem)).expect("there is a port"))
}

fn serve(target: Target) -> SocketAddr {
    let address = target.address().expect("it listens");
    std::thread::spawn(move || target.serve());
    address
}

pub fn guarded() -> Nqn {
    Nqn::new(GUARDED).expect("a valid name")
}

pub fn subsystem() -> Nqn {
    Nqn::new(SUBSYSTEM).expect("a valid name")
}

/// Returns the settings of a new host with its own identifier.
pub fn settings() -> Settings {
    static HOSTS: AtomicU64 = AtomicU64::new(1);
    let number = HOSTS.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(std::process::id());
    let mut id = *b"cairn---interop-";
    id[8..].copy_from_slice(&number.to_le_bytes());
    Settings::new(id)
}

/// Returns bytes that differ from those of any other seed, and from their neighbours.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    let words = (0..length.div_ceil(8)).flat_map(|_| word(&mut state).to_le_bytes());
    words.take(length).collect()
}

/// Writes, reads back and compares.
pub fn round_trip(queue: &mut Queue<TcpTransport>, offset: u64, bytes: &[u8]) {
    queue.write(offset, bytes).expect("written");
    let mut again = vec![0; bytes.len()];
    queue.read(offset, &mut again).expect("read");
    assert!(again == bytes, "{} bytes at {offset} are not what was written", bytes.len());
}

/// Cairn's target with a file as namespace 2. After `end`, another target can export the file.
pub struct Exported {
    pub address: SocketAddr,
    stop: Stop,
    served: JoinHandle<std::io::Result<()>>,
}

impl Exported {
    pub fn start(path: &Path) -> Exported {
        Exported::with(Namespace::in_file(path, 4096).expect("is there"))
    }

    /// Starts the target on a machine whose boot has the identifier `start`.
    pub fn since(path: &Path, start: [u8; 16]) -> Exported {
        Exported::with(Namespace::in_file(path, 4096).expect("is there").since(start))
    }

    fn with(second: Namespace) -> Exported {
        let first = Namespace::in_memory(1 << 20, 512).expect("there is memory");
        let namespaces = vec![first, second];
        let subsystem = Subsystem::new(subsystem(), namespaces, Limits::default());
        let target = Target::bind(ANYWHERE, Arc::new(subsystem)).expect("there is a port");
        let (address, stop) = (target.address().expect("it listens"), target.stop());
        Exported { address, stop, served: thread::spawn(move || target.serve()) }
    }

    pub fn end(self) {
        self.stop.drain();
        self.served.join().expect("no panic").expect("flushed");
    }
}
