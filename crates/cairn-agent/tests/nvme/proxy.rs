//! Something between a host and its target that harms what passes.

use cairn_device::nvme::wire::pdu::COMMON_BYTES;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What happens, once if not said otherwise, when so much has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// The connection ends, in the middle of a PDU or between two.
    Break,
    /// The same, after so many PDUs and not bytes.
    BreakAfterPdus,
    /// A bit of a byte changes.
    Flip,
    /// The connection carries nothing any more in that direction, and stays.
    Silence,
    /// The same, in both directions, and with every connection that is made from then on.
    SilenceForEver,
    /// From the start, and always: what the target asks for does not arrive.
    Deafness,
    /// As long as it is armed: the target refuses what is written to logical blocks from this one
    /// on.
    Refusal { first: u64 },
    /// As long as it is armed: the target refuses what is to be read.
    #[allow(dead_code)] // Not by every test program.
    RefusalToRead,
    /// As long as it is armed: what is written to logical blocks from this one on does not arrive
    /// yet.
    #[allow(dead_code)] // Not by every test program.
    Delay { first: u64 },
}

/// Type of the PDU that carries a command (NVMe/TCP 1.0).
const COMMAND: u8 = 4;
/// Flush, Write and Read (NVM command set), and where a PDU of the latter two has the number of the
/// first block.
const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const FIRST_BLOCK: Range<usize> = COMMON_BYTES + 40..COMMON_BYTES + 48;
/// Type of the PDU by which a target asks for data (NVMe/TCP 1.0, R2T).
const READY_TO_TRANSFER: u8 = 9;

/// More than ever passes.
const NEVER: i64 = i64::MAX / 2;

/// Passes bytes on, does harm, and from then on passes everything on.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// How many bytes, or PDUs, are left until then.
    left: AtomicI64,
    is_silent: AtomicBool,
    is_delaying: AtomicBool,
    flushes: AtomicU64,
    before_reads: Mutex<Option<Box<dyn Fn() + Send>>>,
    harm: Mutex<Harm>,
    target: Mutex<SocketAddr>,
}

impl Proxy {
    /// Does harm after so many bytes of both directions.
    pub fn start(target: SocketAddr, harm: Harm, bytes: i64) -> Proxy {
        let proxy = Proxy::calm(target);
        proxy.arm(harm, bytes);
        proxy
    }

    /// Does none yet.
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

    /// Does harm after so many more bytes, or PDUs.
    pub fn arm(&self, harm: Harm, count: i64) {
        *self.state.harm.lock().unwrap_or_else(PoisonError::into_inner) = harm;
        self.state.left.store(count, Ordering::SeqCst);
    }

    /// Does none any more.
    pub fn disarm(&self) {
        self.arm(Harm::Break, NEVER);
    }

    /// Leads connections that are made from now on to another target.
    pub fn retarget(&self, target: SocketAddr) {
        *self.state.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Whether something has not arrived yet that was to be delayed.
    #[allow(dead_code)]
    pub fn is_delaying(&self) -> bool {
        self.state.is_delaying.load(Ordering::SeqCst)
    }

    /// Does something before the target is asked for what it has.
    #[allow(dead_code)]
    pub fn before_reads(&self, act: impl Fn() + Send + 'static) {
        let mut before = self.state.before_reads.lock().unwrap_or_else(PoisonError::into_inner);
        *before = Some(Box::new(act));
    }

    /// How often the target was asked to make durable what it has.
    #[allow(dead_code)]
    pub fn flushes(&self) -> u64 {
        self.state.flushes.load(Ordering::SeqCst)
    }

    /// Whether harm was done.
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

    /// Both ends find the connection closed when this returns, and with it the other direction
    /// ends.
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
                    // Who is about to lose the connection need not take them.
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

/// The next PDU, and nothing of what follows.
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

/// Takes what comes, until nothing does.
fn swallow(from: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while matches!(from.read(&mut buffer), Ok(1..)) {}
}
