//! A target: exports memory or files of this machine as namespaces over NVMe/TCP, to Cairn's initiator and to any other.
//!
//! ```text
//! Target  one port ─► thread per connection: connection ─► guard, then admin │ io ─► namespace
//!                                              └── subsystem: namespaces, controllers ──┘
//! ```
//! Must stay true: nothing that a host sends makes it read or write outside of a namespace, or hold more memory than the
//! named limits; a host that breaks the rules loses its connection, and nobody else notices.
//! Without a `Guard` whoever reaches the port reads and writes everything. Does not encrypt.

mod admin;
mod buffers;
mod connection;
mod guard;
mod io;
mod namespace;
mod reservation;
mod subsystem;

pub use guard::Guard;
pub use namespace::Namespace;
pub use subsystem::{Limits, Subsystem};

use connection::Connection;
use std::io::Result;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// How long is waited after a connection could not be accepted, for the cause to pass.
const PAUSE: Duration = Duration::from_millis(100);

/// A port at which a subsystem can be reached.
#[derive(Debug)]
pub struct Target {
    listener: TcpListener,
    subsystem: Arc<Subsystem>,
}

impl Target {
    /// Listens at `address`. Errors: the system's.
    pub fn bind(address: SocketAddr, subsystem: Arc<Subsystem>) -> Result<Target> {
        Ok(Target { listener: TcpListener::bind(address)?, subsystem })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves hosts for as long as the process lives.
    pub fn serve(&self) -> ! {
        let connections = Arc::new(AtomicUsize::new(0));
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                // Out of descriptors, or the like: what ends elsewhere makes room.
                std::thread::sleep(PAUSE);
                continue;
            };
            let taken = Taken::new(&connections);
            let subsystem = Arc::clone(&self.subsystem);
            if taken.count <= CONNECTIONS_MAX {
                let serve = move || {
                    let _taken = taken;
                    if let Ok(connection) = Connection::new(stream, subsystem) {
                        connection.serve();
                    }
                };
                // Without a thread the stream is closed, and the host tries again.
                let _ = std::thread::Builder::new().name("nvme-tcp".into()).spawn(serve);
            }
        }
    }
}

/// A connection that counts.
struct Taken {
    connections: Arc<AtomicUsize>,
    count: usize,
}

impl Taken {
    fn new(connections: &Arc<AtomicUsize>) -> Taken {
        let count = connections.fetch_add(1, Ordering::Relaxed) + 1;
        Taken { connections: Arc::clone(connections), count }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
