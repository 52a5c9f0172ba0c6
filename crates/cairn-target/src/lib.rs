//! A target: exports memory or files of this machine as namespaces over NVMe/TCP, to Cairn's
//! initiator and to any other.
//!
//! ```text
//! Target  ports ─► a few threads: event_loop ─► connections: guard, then admin │ io ─► namespace
//!                  pool of buffers │ workers ◄── slow work  └── directory: subsystems, controllers
//! ```
//! Must stay true: nothing that a host sends makes the target read or write outside of a namespace,
//! or hold more memory than the named limits. A host that breaks the rules loses its connection,
//! and nobody else notices. Without a `Guard`, everybody who reaches the port can read and write
//! everything.
//!
//! Does not encrypt.

mod connection;
mod counters;
mod directory;
mod event_loop;
pub mod grants;
mod guard;
pub mod inline_target;
mod mailbox;
mod metrics;
mod notices;
mod pool;
mod socket;
mod subsystem;
mod workers;

pub use directory::Directory;
pub use guard::Guard;
pub use metrics::Metrics;
pub use subsystem::namespace::Namespace;
pub use subsystem::{Limits, Subsystem};

use event_loop::{Entrance, EventLoop};
use mailbox::{Letter, LoopContext, Mailbox};
use std::io::Result;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use workers::Workers;

/// Default limit on the threads that serve connections.
const THREADS_MAX: usize = 8;
/// Most threads that wait for disks, for all namespaces together. Several namespaces whose disks
/// hang can occupy all of them. Every other namespace then gets a thread of its own, and one for
/// its flushes.
const WORKERS_MAX: usize = 128;
/// Most threads that check proofs.
const PROVERS_MAX: usize = 8;

/// Resources of this machine that a target may use.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Number of threads that serve connections.
    pub threads: usize,
    /// Most connections at a time. At most half of them may be guests: hosts that have not proven
    /// who they are, or that only use discovery. One guest more ends the oldest one, except for
    /// guests that have just come.
    pub connections_max: usize,
    /// Most memory for data on their way, bytes. Each thread has an equal share, but at least
    /// enough for one command.
    pub memory_bytes: usize,
    /// Time that a host has for sending data that it was asked for, or for taking what it is sent,
    /// if it moves less than 64 KiB per second. While others wait for memory, it has a sixth of
    /// that time.
    pub patience: Duration,
}

impl Default for Resources {
    fn default() -> Resources {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let patience = Duration::from_secs(60);
        Resources { threads, connections_max: 4096, memory_bytes: 256 << 20, patience }
    }
}

/// Handle that stops a target.
#[derive(Clone)]
pub struct Stop(Vec<Arc<Mailbox>>);

impl Stop {
    /// Stops accepting hosts, finishes the commands that were accepted, and then ends the target.
    pub fn drain(&self) {
        self.0.iter().for_each(|mailbox| mailbox.post(Letter::Drain));
    }
}

/// Ports at which subsystems can be reached.
pub struct Target {
    listeners: Vec<TcpListener>,
    directory: Arc<Directory>,
    resources: Resources,
    loops: Vec<Arc<Mailbox>>,
}

impl Target {
    /// Creates a target that listens at `address`, for one subsystem. Errors: the system's.
    pub fn bind(address: SocketAddr, subsystem: Arc<Subsystem>) -> Result<Target> {
        let directory = Directory::new(*subsystem.limits());
        directory.add(subsystem).map_err(|_| std::io::ErrorKind::AlreadyExists)?;
        let mut target = Target::new(Arc::new(directory), Resources::default())?;
        target.listen(address)?;
        Ok(target)
    }

    /// Creates a target that does not listen anywhere yet. Errors: the system's.
    pub fn new(directory: Arc<Directory>, resources: Resources) -> Result<Target> {
        let loops = (0..resources.threads.max(1)).map(|_| Mailbox::new());
        let loops = loops.collect::<Result<Vec<_>>>()?;
        loops.iter().for_each(|mailbox| directory.inform(mailbox));
        Ok(Target { listeners: Vec::new(), directory, resources, loops })
    }

    /// Listens at one more address. Returns the actual address. Errors: the system's.
    pub fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        self.listeners.push(listener);
        Ok(address)
    }

    /// First address at which it listens.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listeners.first().ok_or(std::io::ErrorKind::AddrNotAvailable)?.local_addr()
    }

    /// Returns a handle that stops the target.
    pub fn stop(&self) -> Stop {
        Stop(self.loops.clone())
    }

    /// Serves hosts until the target is stopped and all written data are durable. Errors: the
    /// system's.
    pub fn serve(mut self) -> Result<()> {
        let (workers, provers) = (Workers::new(WORKERS_MAX), Workers::new(PROVERS_MAX));
        let memory_bytes = self.memory_bytes_each();
        let make = |mailbox: &Arc<Mailbox>, entrance| {
            let (workers, provers) = (Arc::clone(&workers), Arc::clone(&provers));
            let hands = LoopContext::new(memory_bytes, workers, provers, Arc::clone(mailbox));
            EventLoop::new(Arc::clone(&self.directory), hands, &self.resources, entrance)
        };
        let mut others = Vec::new();
        for mailbox in &self.loops[1..] {
            let event_loop = make(mailbox, None)?;
            let thread = thread::Builder::new().name("nvme-tcp".into());
            others.push(thread.spawn(move || event_loop.run())?);
        }
        let entrance = Entrance {
            listeners: std::mem::take(&mut self.listeners),
            loops: self.loops.clone(),
            connections_max: self.resources.connections_max,
        };
        make(&self.loops[0], Some(entrance))?.run();
        // A thread that has panicked serves nobody any more.
        others.into_iter().for_each(|thread| drop(thread.join()));
        self.flush()
    }

    /// Makes all written data durable, as far as possible. Errors: some data are not durable.
    fn flush(&self) -> Result<()> {
        let mut flushed = Ok(());
        for subsystem in self.directory.all() {
            for (_, namespace) in subsystem.namespaces() {
                let this = namespace.flush();
                flushed =
                    flushed.and(this.map_err(|_| std::io::Error::other("not all is durable")));
            }
        }
        flushed
    }

    /// Memory of each thread, bytes: at least enough for the largest command.
    fn memory_bytes_each(&self) -> usize {
        let command_bytes = self.directory.limits().transfer_bytes() as usize;
        (self.resources.memory_bytes / self.resources.threads.max(1)).max(command_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_nvme::Error;
    use cairn_nvme::controller::{Controller, Settings};
    use cairn_nvme::remote::Remote;
    use cairn_nvme::tcp::TcpFabric;
    use cairn_nvme::wire::Nqn;

    const MIB: usize = 1 << 20;

    /// Mechanism: bytes that could not be stored stay in memory for a while; after that, reads
    /// return the bytes from before.
    ///
    /// Consequence: a host that did not flush read old bytes as new ones.
    ///
    /// Fix: every connected host must reconnect, and learns that data were lost.
    #[test]
    fn hosts_of_a_namespace_that_has_lost_bytes_believe_nothing_that_they_read_there() {
        let name = Nqn::new("nqn.2026-11.io.cairn:failing").unwrap();
        let namespaces = vec![Namespace::that_loses(1 << 20)];
        let subsystem = Arc::new(Subsystem::new(name.clone(), namespaces, Limits::default()));
        let target = Target::bind("127.0.0.1:0".parse().unwrap(), subsystem).unwrap();
        let (address, stop) = (target.address().unwrap(), target.stop());
        let served = thread::spawn(|| target.serve());
        let connect = |host: u8| {
            let (fabric, settings) = (TcpFabric::new(address), Settings::new([host; 16]));
            Remote::connect(fabric, &name, 1, &settings, Duration::from_secs(20)).unwrap()
        };
        let (mut one, mut other) = (connect(1), connect(2));
        other.read(0, &mut [0; 4096]).unwrap();
        one.write(0, &[1; 4096]).expect_err("it cannot be stored");
        for host in [&mut one, &mut other] {
            let read = host.read(0, &mut [0; 4096]);
            assert!(matches!(read, Err(Error::Unsuitable { .. })), "{read:?}");
        }
        connect(3).read(0, &mut [0; 4096]).expect("it has written nothing before");
        stop.drain();
        served.join().unwrap().expect_err("not all is durable");
    }

    /// Mechanism: data that waited for a disk kept their memory until the disk had taken them.
    ///
    /// Consequence: a disk that hung or was slow took all the memory, and hosts of other namespaces
    /// waited for it.
    ///
    /// Fix: a namespace leaves as much memory to others as it has.
    #[test]
    fn namespace_whose_disk_hangs_leaves_memory_to_others() {
        let name = Nqn::new("nqn.2026-11.io.cairn:hanging").unwrap();
        let file = |_| Namespace::in_unnamed_file(&std::env::temp_dir(), 64 << 20, 4096).unwrap();
        let namespaces = [0, 1].map(file).into();
        let subsystem = Arc::new(Subsystem::new(name.clone(), namespaces, Limits::default()));
        let directory = Arc::new(Directory::new(Limits::default()));
        directory.add(Arc::clone(&subsystem)).unwrap();
        let resources = Resources { threads: 1, memory_bytes: 8 * MIB, ..Resources::default() };
        let mut target = Target::new(directory, resources).unwrap();
        let address = target.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let stop = target.stop();
        let served = thread::spawn(|| target.serve());
        let write = |host: u8, number, mib: usize| {
            let (timeout, keep_alive) = (Duration::from_secs(60), Duration::from_secs(60));
            let settings = Settings { timeout, keep_alive, ..Settings::new([host; 16]) };
            let mut controller =
                Controller::connect(TcpFabric::new(address), &name, &settings).unwrap();
            let mut queue = controller.queue(number).unwrap();
            queue.write(0, &vec![host; mib * MIB]).map(|()| controller.shut_down().unwrap())
        };
        thread::scope(|scope| {
            let hang = subsystem.namespace(1).unwrap().reservations().hang();
            let others: Vec<_> = [1, 2].map(|host| scope.spawn(move || write(host, 1, 16))).into();
            while subsystem.counters().writes() < 2 {
                thread::yield_now();
            }
            // Meanwhile the other hosts take all the memory that they can get.
            let written: Vec<_> = (3..11).map(|host| write(host, 2, 8)).collect();
            drop(hang);
            let hung = others.into_iter().map(|other| other.join().unwrap());
            let ends: Vec<_> = written.into_iter().chain(hung).collect();
            assert!(ends.iter().all(|end| end.is_ok()), "{ends:?}");
        });
        stop.drain();
        served.join().unwrap().unwrap();
    }
}
