//! Fault-injecting proxy between a host and its target.

use cairn_nvme::wire::pdu::COMMON_BYTES;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Fault that happens after a number of bytes or PDUs; once, unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// The connection ends, in the middle of a PDU or between two.
    Break,
    /// Like `Break`, but counted in PDUs instead of bytes.
    BreakAfterPdus,
    /// One bit of a byte changes.
    Flip,
    /// The connection carries nothing more in that direction, but stays open.
    Silence,
    /// Like `Silence`, but in both directions, and for all later connections as well.
    SilenceForEver,
    /// From the start, for ever: the target's requests for data do not reach the host.
    Deafness,
    /// While armed: the target refuses writes to logical blocks from `first` on.
    Refusal { first: u64 },
    /// While armed: the target refuses reads.
    #[allow(dead_code)] // Not used by every test program.
    RefusalToRead,
    /// While armed: writes to logical blocks from `first` on are held back.
    #[allow(dead_code)] // Not used by every test program.
    Delay { first: u64 },
}

/// Type of the PDU that carries a command (NVMe/TCP 1.0).
const COMMAND: u8 = 4;
/// Opcodes of Flush, Write and Read (NVM command set), and the position of the first block's number
/// in a PDU with a Write or Read.
const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const FIRST_BLOCK: Range<usize> = COMMON_BYTES + 40..COMMON_BYTES + 48;
/// Type of the PDU with which a target requests data (NVMe/TCP 1.0, R2T).
const READY_TO_TRANSFER: u8 = 9;

/// More bytes than ever pass.
const NEVER: i64 = i64::MAX / 2;

/// Forwards bytes, injects its fault, and then forwards everything again.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// Number of bytes, or PDUs, left until the fault.
    left: AtomicI64,
    is_silent: AtomicBool,
    is_delaying: AtomicBool,
    flushes: AtomicU64,
    before_reads: Mutex<Option<Box<dyn Fn() + Send>>>,
    harm: Mutex<Harm>,
    target: Mutex<SocketAddr>,
}

impl Proxy {
    /// Starts a proxy whose fault happens after `bytes` in both directions together.
    pub fn start(target: SocketAddr, harm: Harm, bytes: i64) -> Proxy {
        let proxy = Proxy::calm(target);
        proxy.arm(harm, bytes);
        proxy
    }

    /// Starts a proxy without a fault.
    pub fn calm(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(State {
            left: AtomicI64::new(NEVER),
            is_silent: AtomicBool::new(false),
            is_delaying: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            before_reads: Mutex::default(),
            harm: Mutex::new(Harm::Break),
            target: Mutex::new(target),
        });
        let proxy = Proxy { address, state: Arc::clone(&state) };
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(state.target()) else { break };
                for (from, to) in [(&host, &target), (&target, &host)] {
                    let clones = from.try_clone().and_then(|from| Ok((from, to.try_clone()?)));
                    let (from, to) = clones.expect("there are descriptors");
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || state.pass(from, to));
                }
            }
        });
        proxy
    }

    /// Arms a fault that happens after `count` more bytes, or PDUs.
    pub fn arm(&self, harm: Harm, count: i64) {
        *self.state.harm.lock().unwrap_or_else(PoisonError::into_inner) = harm;
        self.state.left.store(count, Ordering::SeqCst);
    }

    /// Removes the fault.
    pub fn disarm(&self) {
        self.arm(Harm::Break, NEVER);
    }

    /// Leads later connections to another target.
    pub fn retarget(&self, target: SocketAddr) {
        *self.state.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Whether a write is being held back.
    #[allow(dead_code)]
    pub fn is_delaying(&self) -> bool {
        self.state.is_delaying.load(Ordering::SeqCst)
    }

    /// Calls `act` before each Read reaches the target.
    #[allow(dead_code)]
    pub fn before_reads(&self, act: impl Fn() + Send + 'static) {
        let mut before = self.state.before_reads.lock().unwrap_or_else(PoisonError::into_inner);
        *before = Some(Box::new(act));
    }

    /// Number of Flush commands sent to the target.
    #[allow(dead_code)]
    pub fn flushes(&self) -> u64 {
        self.state.flushes.load(Ordering::SeqCst)
    }

    /// Whether the fault has happened.
    pub fn is_done(&self) -> bool {
        self.state.left.load(Ordering::SeqCst) <= 0
    }
}

impl State {
    fn harm(&self) -> Harm {
        *self.harm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self) -> SocketAddr {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards one direction of a connection. When this returns, both ends find the connection
    /// closed, which ends the other direction as well.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = Vec::new();
        while receive(&mut from, &mut buffer).is_ok() {
            while matches!(self.harm(), Harm::Delay { first } if writes_from(&buffer, first)) {
                self.is_delaying.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            let harm = self.harm();
            if is_command(&buffer, FLUSH) {
                self.flushes.fetch_add(1, Ordering::SeqCst);
            }
            if harm == Harm::Deafness && buffer[0] == READY_TO_TRANSFER {
                continue;
            }
            if let Harm::Refusal { first } = harm {
                if writes_from(&buffer, first) {
                    buffer[FIRST_BLOCK].fill(0xff);
                }
            }
            if is_command(&buffer, READ) {
                let before = self.before_reads.lock().unwrap_or_else(PoisonError::into_inner);
                before.iter().for_each(|act| act());
            }
            if harm == Harm::RefusalToRead && is_command(&buffer, READ) {
                buffer[FIRST_BLOCK].fill(0xff);
            }
            let count = if harm == Harm::BreakAfterPdus { 1 } else { buffer.len() as i64 };
            let before = self.left.fetch_sub(count, Ordering::SeqCst);
            let is_due = (1..=count).contains(&before);
            match harm {
                Harm::Flip if is_due => buffer[before as usize - 1] ^= 1 << (before % 8),
                Harm::Break if is_due => {
                    // The receiver is about to lose the connection and need not take them.
                    let _ = to.write_all(&buffer[..before as usize - 1]);
                    break;
                }
                Harm::Silence if is_due => swallow(&mut from),
                Harm::SilenceForEver if is_due => self.is_silent.store(true, Ordering::SeqCst),
                _ => {}
            }
            if self.is_silent.load(Ordering::SeqCst) {
                swallow(&mut from);
            }
            if to.write_all(&buffer).is_err() || (is_due && harm == Harm::BreakAfterPdus) {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// Receives exactly one PDU.
pub fn receive(from: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<()> {
    buffer.resize(COMMON_BYTES, 0);
    from.read_exact(buffer)?;
    let bytes = u32::from_le_bytes([buffer[4], buffer[5], buffer[6], buffer[7]]) as usize;
    buffer.resize(bytes.max(COMMON_BYTES), 0);
    from.read_exact(&mut buffer[COMMON_BYTES..])
}

fn is_command(pdu: &[u8], opcode: u8) -> bool {
    pdu[0] == COMMAND && pdu[COMMON_BYTES] == opcode
}

fn writes_from(pdu: &[u8], first: u64) -> bool {
    let place = || pdu[FIRST_BLOCK].try_into().expect("eight bytes");
    is_command(pdu, WRITE) && u64::from_le_bytes(place()) >= first
}

/// Reads and drops bytes until the connection ends.
fn swallow(from: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while matches!(from.read(&mut buffer), Ok(1..)) {}
}
