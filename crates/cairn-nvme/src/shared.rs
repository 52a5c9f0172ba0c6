//! A namespace on another machine for all threads of a process, and for its children after `fork`.
//! Each process has its own connection, made when it first needs one. Known traits of the namespace
//! need no connection.
//!
//! Must stay true: one thread at a time uses the connection. A child never touches the connection
//! that it inherited, neither its sockets nor its memory: `owner` still names the parent then. A
//! thread that has waited while another thread failed does not try for the full time again. The
//! sockets keep the same two descriptor numbers for as long as this object lives, so that whoever
//! keeps the application from closing them needs to be told once.
//!
//! Does not make concurrent calls fast.

use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cairn_platform::descriptor::Descriptor;
use cairn_platform::{process, sys};

use crate::crypto::Hash;

use super::availability::Availability;
use super::claim::Claim;
use super::controller::Settings;
use super::error::{Error, Result};
use super::partition::{Part, Partition};
use super::queue::{Queue, Traits};
use super::remote::{Look, Remote};
use super::secret::{CachedSecrets, SecretSource};
use super::tcp::{self, TcpFabric, TcpTransport};
use super::wait_queue::Line;
use super::wire::{Nqn, Status};

/// Unit of labels and marks, bytes.
const PAGE_BYTES: u64 = 4096;
/// Time for which a call tries before it fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// A thread that waits for the connection yields this often before it sleeps, for `WAIT` at a time.
const YIELDS: u32 = 50;
const WAIT: Duration = Duration::from_micros(50);

/// Time for which a process keeps its connection although others wait for one.
const TURN: Duration = Duration::from_millis(50);
/// Keep Alive timeout of a connection that a process had to wait for and need not keep. After this
/// much silence the target drops the connection, and the next process gets it.
const TURN_IDLE: Duration = Duration::from_secs(3);

/// Whether a namespace is still the known one. Errors: it could not be read.
pub type Check = Box<dyn Fn(&mut View<'_>) -> Result<bool> + Send + Sync>;

const CHANGED: Error = Error::Unsuitable {
    why: "the tier does not belong to this store, or another store recovered it",
};

/// Location of a namespace, as a path: `//ADDRESS:PORT/NQN?nsid=N&part=I/N&auth=SOURCE`. The text
/// form omits the source of secrets: the identity of a namespace does not depend on who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemotePath {
    /// Address of the target.
    pub address: SocketAddr,
    /// Subsystem of the target.
    pub subsystem: Nqn,
    /// Namespace in the subsystem.
    pub namespace: u32,
    /// Part of the namespace; `None`: all of it.
    pub part: Option<Part>,
    /// Source of the secrets, if both sides are to authenticate.
    pub secrets: Option<SecretSource>,
}

impl RemotePath {
    /// Whether a path has this form. Absolute, normalized paths of files do not.
    pub fn is_one(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().starts_with(b"//")
    }

    /// Formats a tier's path for people. A remote path gets the prefix that it has on the command
    /// line.
    pub fn shown(path: &Path) -> String {
        let before = if RemotePath::is_one(path) { "nvme-tcp:" } else { "" };
        format!("{before}{}", path.display())
    }

    /// Parses a path. Without `nsid` the namespace is number 1.
    pub fn parse(path: &Path) -> Option<RemotePath> {
        let (address, rest) = path.to_str()?.strip_prefix("//")?.split_once('/')?;
        let (name, options) = rest.split_once('?').unwrap_or((rest, "nsid=1"));
        let (address, subsystem) = (address.parse().ok()?, Nqn::new(name)?);
        let mut place = RemotePath { address, subsystem, namespace: 1, part: None, secrets: None };
        for option in options.split('&') {
            match option.split_once('=')? {
                ("nsid", number) => place.namespace = number.parse().ok().filter(|&n| n > 0)?,
                // Part 1/1 is the whole namespace.
                ("part", text) => {
                    place.part = Some(Part::parse(text)?).filter(|part| part.count() > 1)
                }
                ("auth", source) => place.secrets = Some(SecretSource::parse(source)?),
                _ => return None,
            }
        }
        Some(place)
    }
}

impl core::fmt::Display for RemotePath {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "//{}/{}?nsid={}", self.address, self.subsystem, self.namespace)?;
        self.part.map_or(Ok(()), |part| write!(formatter, "&part={part}"))
    }
}

/// A namespace, or a part of it.
pub struct SharedRemote {
    place: RemotePath,
    range: Partition,
    settings: Settings,
    traits: Traits,
    /// Descriptor numbers of the sockets: admin, I/O.
    numbers: [Descriptor; 2],
    /// Generations of processes. `locked`: one of its threads uses the connection; 0: none.
    /// `owner`: the process that made the connection. `keeper`: the process that keeps its
    /// connection although others wait.
    locked: AtomicU64,
    owner: AtomicU64,
    keeper: AtomicU64,
    connection: UnsafeCell<ManuallyDrop<Connection>>,
    /// Whether the target's machine was started again.
    may_be_stale: AtomicBool,
    /// Time for which a call tries before it fails.
    patience: Duration,
    away: Availability,
    /// Check that each connection passes before anything else is read or written on it.
    look: OnceLock<Look<TcpFabric>>,
    /// Line in which processes wait for a connection when the target grants no more.
    line: OnceLock<Arc<Line>>,
}

/// Connection of a process.
struct Connection {
    remote: Remote<TcpFabric>,
    /// Time and error of the last call that tried in vain for as long as it may.
    failure: Option<(Instant, Error)>,
}

// SAFETY: only the thread that has set `locked` reaches the connection, one at a time.
unsafe impl Sync for SharedRemote {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for SharedRemote {}

impl SharedRemote {
    /// Connects as the host `host_id`, and claims the namespace as `claim` says.
    pub fn open(place: &RemotePath, host_id: [u8; 16], claim: Claim) -> Result<SharedRemote> {
        SharedRemote::prepare(place, host_id, claim, |fabric, settings| {
            Remote::connect(fabric, &place.subsystem, place.namespace, settings, PATIENCE)
        })
    }

    /// As `open`, with traits that are known. Connects at the first read or write.
    pub fn known(
        place: &RemotePath,
        host_id: [u8; 16],
        claim: Claim,
        traits: &Traits,
    ) -> Result<SharedRemote> {
        SharedRemote::prepare(place, host_id, claim, |fabric, settings| {
            Ok(Remote::known(fabric, &place.subsystem, settings, PATIENCE, traits))
        })
    }

    fn prepare(
        place: &RemotePath,
        host_id: [u8; 16],
        claim: Claim,
        make: impl FnOnce(TcpFabric, &Settings) -> Result<Remote<TcpFabric>>,
    ) -> Result<SharedRemote> {
        let failed = |errno| Error::System { action: "prepare a connection", errno };
        let secrets = place.secrets.clone().map(CachedSecrets::from);
        // Read the secrets here: the program may change its environment later. If that fails,
        // connecting fails.
        let host_id = match secrets.as_ref().map(CachedSecrets::get) {
            Some(Ok(secrets)) => host_id_under(&secrets.name, host_id),
            _ => host_id,
        };
        let settings = Settings { claim, secrets, ..Settings::new(host_id) };
        let numbers = [tcp::reserve().map_err(failed)?, tcp::reserve().map_err(failed)?];
        let remote = make(fabric(place, &numbers), &settings)?;
        let traits = *remote.traits();
        let all = traits.shape.bytes();
        let range = match place.part {
            Some(part) => part.of((all / PAGE_BYTES * PAGE_BYTES).saturating_sub(PAGE_BYTES)),
            None => Partition { offset: 0, length: all },
        };
        Ok(SharedRemote {
            place: place.clone(),
            range,
            settings,
            traits,
            numbers,
            locked: AtomicU64::new(0),
            owner: AtomicU64::new(process::generation()),
            keeper: AtomicU64::new(0),
            connection: UnsafeCell::new(ManuallyDrop::new(Connection { remote, failure: None })),
            may_be_stale: AtomicBool::new(false),
            patience: PATIENCE,
            away: Availability::default(),
            look: OnceLock::new(),
            line: OnceLock::new(),
        })
    }

    /// Properties of the namespace and its controller.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Sets a check that each connection passes before anything else is read or written on it:
    /// whether the namespace, or the part of it, is still the known one. Only the first call
    /// counts.
    pub fn check_first(&self, check: Check) {
        let range = self.range;
        // Failure means that a check is set already.
        let _ = self.look.set(Arc::new(move |queue| look(queue, range, &check)));
    }

    /// Sets the line in which processes wait when the target grants no more connections. Only the
    /// first call counts.
    pub fn wait_in(&self, line: Line) {
        // Failure means that a line is set already.
        let _ = self.line.set(Arc::new(line));
    }

    /// Connects if this process is not connected. Keeps that connection although others wait.
    pub fn reach(&self) -> Result<()> {
        self.keeper.store(process::generation(), Ordering::Relaxed);
        self.with(Remote::keep_alive)
    }

    /// Size of the namespace, or of the part of it, bytes.
    pub fn bytes(&self) -> u64 {
        self.range.length
    }

    /// Part of the namespace; `None`: all of it.
    pub fn part(&self) -> Option<Part> {
        self.place.part
    }

    /// This host's identifier at the target.
    pub fn host_id(&self) -> &[u8; 16] {
        &self.settings.host_id
    }

    /// Whether a claim on the whole namespace can keep other hosts from writing.
    pub fn can_reserve(&self) -> bool {
        self.traits.can_reserve
    }

    /// Reads the last page of the namespace, which belongs to no part.
    pub fn read_last_page(&self, page: &mut [u8; PAGE_BYTES as usize]) -> Result<()> {
        let at = self.last_page_at()?;
        self.with(|remote| remote.read(at, page))
    }

    /// Writes that page without a retry. Errors: it was not written by `deadline`, or the
    /// connection broke.
    pub fn write_last_page(
        &self,
        page: &[u8; PAGE_BYTES as usize],
        deadline: Instant,
    ) -> Result<()> {
        let at = self.last_page_at()?;
        self.with(|remote| remote.write_once(at, page, deadline))
    }

    /// Writes whole blocks without a retry. Errors: as `write_last_page`.
    pub fn write_once(&self, at: u64, source: &[u8], deadline: Instant) -> Result<()> {
        let at = self.place(at, source.len() as u64)?;
        self.with(|remote| remote.write_once(at, source, deadline))
    }

    fn last_page_at(&self) -> Result<u64> {
        let all = self.traits.shape.bytes() / PAGE_BYTES * PAGE_BYTES;
        all.checked_sub(PAGE_BYTES).ok_or(Error::Invalid)
    }

    /// Converts a range of the part to an offset in the namespace. Errors: the range does not lie
    /// in the part.
    fn place(&self, at: u64, length: u64) -> Result<u64> {
        match at.checked_add(length) {
            Some(end) if end <= self.range.length => Ok(self.range.offset + at),
            _ => Err(Error::Invalid),
        }
    }

    /// Unit of reads and writes, bytes.
    pub fn block_bytes(&self) -> u64 {
        self.traits.shape.block_bytes()
    }

    /// Whether the namespace is write-protected.
    pub fn is_write_protected(&self) -> bool {
        self.traits.shape.is_write_protected
    }

    /// Calls `visit` with each descriptor that is kept open.
    pub fn descriptors(&self, visit: &mut dyn FnMut(i32)) {
        self.numbers.iter().for_each(|number| visit(number.raw()));
        self.line.get().into_iter().for_each(|line| visit(line.descriptor()));
    }

    /// Reads whole blocks.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, and nobody else uses them.
    pub unsafe fn read(&self, target: *mut u8, length: usize, at: u64) -> Result<()> {
        let at = self.place(at, length as u64)?;
        // SAFETY: promised by the caller.
        self.with(|remote| unsafe { remote.read_to(at, target, length) })
    }

    /// As `read`, for callers that verify what they read. Returns whether the bytes may be older
    /// than what was written there.
    ///
    /// # Safety
    /// As `read`.
    pub unsafe fn read_unverified(&self, target: *mut u8, length: usize, at: u64) -> Result<bool> {
        let at = self.place(at, length as u64)?;
        // SAFETY: promised by the caller.
        self.with(|remote| unsafe { remote.read_unverified(at, target, length) })
    }

    /// Runs `act`, which can be deferred, unless the target is silent. `None`: the target is
    /// silent, and it is not time to try it again.
    pub fn unless_unreachable<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let _ask = self.away.ask(uptime_ms(), sys::gettid() as u64)?;
        Some(act())
    }

    /// Time for which a call of this process has had no answer; `None`: every call was answered.
    pub fn silent_for(&self) -> Option<Duration> {
        self.away.silent_for(uptime_ms())
    }

    /// Whether the target has told this process that it has no such subsystem or namespace.
    pub fn is_gone(&self) -> bool {
        self.away.is_missing()
    }

    /// Whether this process knows that written data which were not made durable may be lost.
    /// Nothing is read or written then.
    pub fn may_be_stale(&self) -> bool {
        self.may_be_stale.load(Ordering::Relaxed)
    }

    /// Writes whole blocks.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes.
    pub unsafe fn write(&self, source: *const u8, length: usize, at: u64) -> Result<()> {
        let at = self.place(at, length as u64)?;
        // SAFETY: promised by the caller.
        self.with(|remote| unsafe { remote.write_from(at, source, length) })
    }

    /// Makes written data durable.
    pub fn flush(&self) -> Result<()> {
        self.with(Remote::flush)
    }

    /// Tells the target that the contents of whole blocks are not needed.
    pub fn discard(&self, at: u64, length: u64) -> Result<()> {
        let at = self.place(at, length)?;
        self.with(|remote| remote.discard(at, length))
    }

    /// Whether this process has seen that this host holds the reservation.
    pub fn is_reserved_here(&self) -> bool {
        self.has_seen(Remote::is_reserved_here)
    }

    /// Whether this process has made the claim, and no process of this host had made it before.
    pub fn was_free(&self) -> bool {
        self.has_seen(Remote::was_free)
    }

    /// Whether something is so of this process's connection. Sends nothing, so it says nothing of
    /// whether the target answers.
    fn has_seen(&self, is_so: impl Fn(&Remote<TcpFabric>) -> bool) -> bool {
        let generation = process::generation();
        let _turn = Turn::take(&self.locked, generation);
        // SAFETY: only this thread has the connection. It is looked at only if it is this
        // process's.
        self.owner.load(Ordering::Relaxed) == generation
            && is_so(unsafe { &(&*self.connection.get()).remote })
    }

    /// Lets other hosts claim the namespace.
    pub fn release(&self) -> Result<()> {
        self.with(Remote::release)
    }

    /// Runs `act` on this process's connection, which no other thread uses meanwhile.
    fn with<T>(&self, act: impl FnOnce(&mut Remote<TcpFabric>) -> Result<T>) -> Result<T> {
        self.with_since(Instant::now(), act)
    }

    /// As `with`, for a call that began at `began`. Errors: also that of another call that has
    /// tried in vain since.
    fn with_since<T>(
        &self,
        began: Instant,
        act: impl FnOnce(&mut Remote<TcpFabric>) -> Result<T>,
    ) -> Result<T> {
        let generation = process::generation();
        let _turn = Turn::take(&self.locked, generation);
        let connection = self.connection.get();
        if self.owner.load(Ordering::Relaxed) != generation {
            let (subsystem, settings) = (&self.place.subsystem, &self.settings);
            let fabric = fabric(&self.place, &self.numbers);
            let remote = Remote::known(fabric, subsystem, settings, self.patience, &self.traits);
            // SAFETY: only this thread has the connection. The previous value is the parent's and
            // is not dropped.
            unsafe { connection.write(ManuallyDrop::new(Connection { remote, failure: None })) };
            self.owner.store(generation, Ordering::Relaxed);
        }
        // SAFETY: as above.
        let Connection { remote, failure } = unsafe { &mut **connection };
        if let Some((_, error)) = failure.filter(|&(at, _)| began < at) {
            return Err(error);
        }
        let thread = || sys::gettid() as u64;
        let is_asking = self.away.is_asked_by(thread);
        let deadline = began + if is_asking { Duration::ZERO } else { self.patience };
        self.away.begins(uptime_ms());
        remote.set_patience(deadline.saturating_duration_since(Instant::now()));
        self.look.get().into_iter().for_each(|look| remote.look_first(look));
        let idle = if self.is_kept() { self.settings.keep_alive } else { TURN_IDLE };
        self.line.get().into_iter().for_each(|line| remote.wait_in(line, idle));
        let done = act(remote);
        if remote.may_be_stale() {
            self.may_be_stale.store(true, Ordering::Relaxed);
        }
        let now = Instant::now();
        *failure = match &done {
            Err(Error::Refused { .. }) | Ok(_) => None,
            Err(error) => (error.may_be_retried() && now >= deadline).then_some((now, *error)),
        };
        match &done {
            Err(error) if error.may_be_retried() => {
                failure.iter().for_each(|_| self.away.is_silent(uptime_ms()));
            }
            Err(Error::Refused { status, .. }) => {
                let none = [Status::CONNECT_INVALID, Status::INVALID_NAMESPACE];
                self.away.answers(none.contains(&status.code()));
            }
            _ => self.away.answers(false),
        }
        self.yield_if_awaited(remote);
        done
    }

    /// Gives up the connection as after a call. For a thread that waits for another process: that
    /// process may itself wait for a connection.
    pub fn yield_connection(&self) {
        let generation = process::generation();
        // A thread that uses the connection gives it up itself.
        let Some(_turn) = Turn::try_take(&self.locked, generation) else { return };
        if self.owner.load(Ordering::Relaxed) == generation {
            // SAFETY: only this thread has the connection, which is this process's.
            let connection = unsafe { &mut *self.connection.get() };
            self.yield_if_awaited(&mut connection.remote);
        }
    }

    /// Gives up the connection if its turn is over and others wait.
    fn yield_if_awaited(&self, remote: &mut Remote<TcpFabric>) {
        let is_wanted = self.line.get().is_some_and(|line| !line.is_empty());
        let had_its_turn = || remote.connected_for().is_some_and(|time| time >= TURN);
        if is_wanted && !self.is_kept() && had_its_turn() {
            remote.disconnect();
        }
    }

    /// Whether this process keeps its connection although others wait.
    fn is_kept(&self) -> bool {
        self.keeper.load(Ordering::Relaxed) == process::generation()
    }
}

fn uptime_ms() -> u64 {
    sys::uptime().as_millis() as u64
}

/// Host identifier for a name that is proven. To a target, a host that proves another name is
/// another host.
fn host_id_under(name: &Nqn, host_id: [u8; 16]) -> [u8; 16] {
    let hash = Hash::Sha256.of(&[&host_id, name.as_str().as_bytes()]);
    *hash.first_chunk().expect("it has 32 bytes")
}

fn look(queue: &mut Queue<TcpTransport>, range: Partition, check: &Check) -> Result<()> {
    match check(&mut View { queue, range })? {
        true => Ok(()),
        false => Err(CHANGED),
    }
}

impl Drop for SharedRemote {
    fn drop(&mut self) {
        if self.owner.load(Ordering::Relaxed) == process::generation() {
            // SAFETY: the connection is this process's, and nobody uses it any more.
            unsafe { ManuallyDrop::drop(self.connection.get_mut()) };
        }
    }
}

impl core::fmt::Debug for SharedRemote {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "SharedRemote({})", self.place)
    }
}

fn fabric(place: &RemotePath, numbers: &[Descriptor; 2]) -> TcpFabric {
    TcpFabric {
        address: place.address,
        header_digest: false,
        data_digest: false,
        numbers: Some([numbers[0].raw(), numbers[1].raw()]),
    }
}

/// Range of a namespace on a new connection, shown to a [`Check`] before anything else uses it.
pub struct View<'a> {
    queue: &'a mut Queue<TcpTransport>,
    range: Partition,
}

impl View<'_> {
    /// Size of the range, bytes.
    pub fn bytes(&self) -> u64 {
        self.range.length
    }

    /// Reads `target.len()` bytes at `offset` of the range. Errors: `Invalid` for bytes outside of
    /// it; those of the connection.
    pub fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(target.len() as u64);
        if end.is_none_or(|end| end > self.range.length) {
            return Err(Error::Invalid);
        }
        self.queue.read(self.range.offset + offset, target)
    }
}

/// Exclusive use of the connection by this thread, until this is dropped.
struct Turn<'a>(&'a AtomicU64);

impl Turn<'_> {
    /// Takes the connection unless a thread of the process with this generation has it. A turn of
    /// another generation was inherited through `fork` and counts as free: its thread does not
    /// exist here.
    fn try_take(locked: &AtomicU64, generation: u64) -> Option<Turn<'_>> {
        let found = locked.load(Ordering::Relaxed);
        let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
        let is_free = found != generation;
        let is_taken = is_free && locked.compare_exchange(found, generation, taken, failed).is_ok();
        is_taken.then(|| Turn(locked))
    }

    fn take(locked: &AtomicU64, generation: u64) -> Turn<'_> {
        let mut round = 0;
        loop {
            if let Some(turn) = Turn::try_take(locked, generation) {
                return turn;
            }
            round += 1;
            match round < YIELDS {
                true => sys::sched_yield(),
                // A sleep that is cut short is fine.
                false => drop(sys::nanosleep(WAIT)),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::identify;

    /// A namespace of a target that does not exist.
    fn unreachable() -> SharedRemote {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let text = format!("//{}/nqn.x", listener.local_addr().unwrap());
        let shape = identify::Namespace {
            blocks: 1 << 10,
            block_shift: 12,
            is_write_protected: false,
            guid: [7; 16],
            access_group: 0,
            start: [0; 16],
        };
        let traits = Traits {
            namespace: 1,
            shape,
            transfer_bytes_max: 1 << 20,
            has_volatile_cache: false,
            can_write_zeroes: false,
            can_deallocate: false,
            can_reserve: false,
        };
        let place = RemotePath::parse(Path::new(&text)).unwrap();
        let mut remote = SharedRemote::known(&place, [1; 16], Claim::None, &traits).unwrap();
        remote.patience = Duration::ZERO;
        remote
    }

    /// Mechanism: threads that waited for each other each tried for as long as a call may.
    ///
    /// Consequence: the last of N threads failed after N times that long.
    ///
    /// Fix: a thread that has waited while another one tried in vain fails with it.
    #[test]
    fn call_that_has_waited_while_another_one_failed_fails_with_it() {
        let remote = unreachable();
        let began = Instant::now();
        let failed = remote.flush().unwrap_err();
        assert!(failed.may_be_retried(), "{failed}");
        assert_eq!(
            remote.with_since(began, |_| -> Result<()> { panic!("tries, too") }),
            Err(failed)
        );
        assert_eq!(remote.with(|_| Ok(7)), Ok(7), "who comes later tries anew");
        assert_eq!(remote.with_since(began, |_| Ok(8)), Ok(8), "it has been reached since");
    }

    /// Mechanism: a machine had one identifier, whatever name it proved.
    ///
    /// Consequence: a target that knows a host by name and identifier took two names of one machine
    /// for impostors of each other.
    ///
    /// Fix: each proven name has an identifier of its own.
    #[test]
    fn host_has_another_identifier_under_another_name_and_the_same_one_in_each_process() {
        let id_of = |name: &str, number: u32| {
            let file = format!("cairn-names-{}-{name}-{number}", std::process::id());
            let path = std::env::temp_dir().join(file);
            let secret = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
            std::fs::write(&path, format!("nqn.2026-11.test:{name}\n{secret}\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, mode).unwrap();
            let text = format!("//127.0.0.1:4420/nqn.x?nsid=1&auth={}", path.display());
            let place = RemotePath::parse(Path::new(&text)).unwrap();
            let traits = *unreachable().traits();
            let remote = SharedRemote::known(&place, [7; 16], Claim::None, &traits).unwrap();
            std::fs::remove_file(&path).unwrap();
            *remote.host_id()
        };
        let [one, same, other] = [("one", 1), ("one", 2), ("other", 1)].map(|(a, b)| id_of(a, b));
        assert_eq!(one, same);
        assert!(one != other && one != [7; 16] && other != [7; 16]);
        assert_eq!(unreachable().host_id(), &[1; 16], "without a name to prove");
    }

    #[test]
    fn turn_of_a_thread_that_did_not_come_along_through_fork_is_free() {
        let locked = AtomicU64::new(0);
        let parents = Turn::try_take(&locked, 1).unwrap();
        assert!(Turn::try_take(&locked, 1).is_none());
        let ours = Turn::try_take(&locked, 2).unwrap();
        assert!(Turn::try_take(&locked, 2).is_none());
        drop(ours);
        assert!(Turn::try_take(&locked, 2).is_some());
        core::mem::forget(parents);
    }

    #[test]
    fn paths_of_namespaces_are_told_from_those_of_files() {
        let text = "//10.0.0.5:4420/nqn.2026-11.io.cairn:target?nsid=2";
        let place = RemotePath::parse(Path::new(text)).unwrap();
        assert_eq!((place.to_string().as_str(), place.namespace), (text, 2));
        let place = RemotePath::parse(Path::new("//[::1]:4420/nqn.x")).unwrap();
        assert_eq!((place.address.port(), place.namespace), (4420, 1));
        let place = RemotePath::parse(Path::new("//[::1]:4420/nqn.x?nsid=3&auth=/s/f")).unwrap();
        assert_eq!(place.secrets, Some(SecretSource::File("/s/f".into())));
        assert_eq!(place.to_string(), "//[::1]:4420/nqn.x?nsid=3", "the same for everybody");
        let place = RemotePath::parse(Path::new("//[::1]:4420/nqn.x?auth=env:A")).unwrap();
        assert_eq!(place.secrets, Some(SecretSource::Variable("A".into())));
        let text = "//[::1]:4420/nqn.x?nsid=1&part=2/3";
        assert_eq!(RemotePath::parse(Path::new(text)).unwrap().to_string(), text);
        let place = RemotePath::parse(Path::new("//[::1]:4420/nqn.x?part=1/1")).unwrap();
        assert_eq!(place.part, None);
        for path in [
            "/nvme/file",
            "//host/nqn.x",
            "//1.2.3.4:1/x",
            "//1.2.3.4:1/nqn.x?nsid=0",
            "//1.2.3.4:1/nqn.x?nsid=1&auth=relative",
            "//1.2.3.4:1/nqn.x?nsid=1&auth=env:",
            "//1.2.3.4:1/nqn.x?nsid=1&other=1",
            "//1.2.3.4:1/nqn.x?nsid=1&part=3/2",
            "//",
        ] {
            assert_eq!(RemotePath::parse(Path::new(path)), None, "{path}");
        }
        assert!(!RemotePath::is_one(Path::new("/nvme/file")));
    }
}
