//! Something between a host and its target that harms what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What happens once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The connections end.
    Break,
    /// A bit of a byte changes.
    Flip,
}

/// Passes bytes on, does harm once, and from then on passes everything on.
pub struct Proxy {
    pub address: SocketAddr,
    /// How many bytes are left until then.
    left: Arc<AtomicI64>,
}

impl Proxy {
    /// Does harm after so many bytes of both directions.
    pub fn start(target: SocketAddr, harm: Harm, bytes: i64) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it listens");
        let left = Arc::new(AtomicI64::new(bytes));
        let proxy = Proxy { address, left: Arc::clone(&left) };
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(target) else { break };
                for (from, to) in [(&host, &target), (&target, &host)] {
                    let clones = from.try_clone().and_then(|from| Ok((from, to.try_clone()?)));
                    let (from, to) = clones.expect("there are descriptors");
                    let left = Arc::clone(&left);
                    std::thread::spawn(move || pass(from, to, harm, &left));
                }
            }
        });
        proxy
    }

    /// Whether harm was done.
    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::Relaxed) <= 0
    }
}

/// Both ends find the connection closed when this returns, and with it the other direction ends.
fn pass(mut from: TcpStream, mut to: TcpStream, harm: Harm, left: &AtomicI64) {
    let mut buffer = vec![0; 1 << 14];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let before = left.fetch_sub(count as i64, Ordering::Relaxed);
        if (1..=count as i64).contains(&before) {
            match harm {
                Harm::Break => break,
                Harm::Flip => buffer[before as usize - 1] ^= 1 << (before % 8),
            }
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
