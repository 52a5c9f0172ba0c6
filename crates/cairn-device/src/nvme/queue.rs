//! An I/O queue: a namespace read and written over one transport.
//!
//! Must stay true: a call that returns has let go of its memory, whatever it returns. Ranges are
//! checked against the namespace before anything is sent.
//! Does not reconnect; `remote` does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::admin::Admin;
use super::error::{Error, Result};
use super::transport::{CommandId, Data, Limit, Transport};
use super::wire::command::{self, Blocks, Command};
use super::wire::fabrics::INVALID_HOST_ID;
use super::wire::identify;
use super::wire::{Completion, Status};

/// How much a controller is told to forget at a time: no more than it does in the time of a
/// command.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

const IMPOSTOR: &str = "the target knows this machine by another name, under which it is connected or has claimed a namespace: \
                        use that name, or give up what was claimed under it";

/// What a queue needs to know of its namespace and controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// NSID.
    pub namespace: u32,
    /// Its size and blocks.
    pub shape: identify::Namespace,
    /// Most data of a command (MDTS), bytes; a multiple of the block size.
    pub transfer_bytes_max: u64,
    /// What was written may be lost until it is flushed.
    pub has_volatile_cache: bool,
    /// Write Zeroes is supported.
    pub can_write_zeroes: bool,
    /// Dataset Management is supported.
    pub can_deallocate: bool,
    /// Reservations are supported.
    pub can_reserve: bool,
}

/// A connected I/O queue.
#[derive(Debug)]
pub struct Queue<T> {
    transport: T,
    traits: Traits,
    limit: Limit,
    alive: Alive<T>,
}

/// What keeps the controller from forgetting us while commands are under way, of which it takes no
/// notice.
#[derive(Debug)]
pub(super) struct Alive<T> {
    admin: Arc<Mutex<Admin<T>>>,
    /// How often is looked whether it is time; zero: never.
    every: Duration,
    looked: Instant,
}

impl<T: Transport> Alive<T> {
    /// By that admin queue of a controller that forgets us after so long.
    pub(super) fn new(admin: Arc<Mutex<Admin<T>>>, keep_alive: Duration) -> Alive<T> {
        // The admin queue may have been silent for half of the time already.
        Alive { admin, every: keep_alive / 4, looked: Instant::now() }
    }

    /// When is to be looked again; None: never.
    fn next(&self) -> Option<Instant> {
        (!self.every.is_zero()).then(|| self.looked + self.every)
    }

    fn stay(&mut self, now: Instant) -> Result<()> {
        if self.next().is_none_or(|next| now < next) {
            return Ok(());
        }
        self.looked = now;
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).keep_alive()
    }
}

impl<T: Transport> Queue<T> {
    /// The queue that was connected over `transport`. A command that is not answered in time ends
    /// the connection.
    pub(super) fn new(transport: T, traits: Traits, limit: Limit, alive: Alive<T>) -> Queue<T> {
        Queue { transport, traits, limit, alive }
    }

    /// Until when all commands must have ended from now on; None: each has its time.
    pub fn set_deadline(&mut self, all: Option<Instant>) {
        self.limit.all = all;
    }

    /// What it was told of its namespace.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// How many commands may be under way.
    pub fn depth(&self) -> usize {
        self.transport.depth()
    }

    /// Sends a read of whole blocks, at most `transfer_bytes_max`.
    ///
    /// # Safety
    /// As `Transport::submit`: `target` is writable for `length` bytes.
    pub unsafe fn submit_read(
        &mut self,
        offset: u64,
        target: *mut u8,
        length: usize,
    ) -> Result<CommandId> {
        let blocks = self.blocks(offset, length as u64, self.traits.transfer_bytes_max)?;
        let read = Command::Read { namespace: self.traits.namespace, blocks };
        // SAFETY: promised by the caller.
        unsafe { self.transport.submit(read.encode(), Data::In { address: target, length }) }
    }

    /// Sends a write of whole blocks, at most `transfer_bytes_max`.
    ///
    /// # Safety
    /// As `Transport::submit`: `source` is readable for `length` bytes.
    pub unsafe fn submit_write(
        &mut self,
        offset: u64,
        source: *const u8,
        length: usize,
    ) -> Result<CommandId> {
        let blocks = self.blocks(offset, length as u64, self.traits.transfer_bytes_max)?;
        let namespace = self.traits.namespace;
        let write = Command::Write { namespace, blocks, is_durable: false };
        // SAFETY: promised by the caller.
        unsafe { self.transport.submit(write.encode(), Data::Out { address: source, length }) }
    }

    /// The next command that ended. Errors: none did in time; then the connection has ended, and
    /// with it all commands.
    pub fn wait(&mut self) -> Result<Completion> {
        let mut now = Instant::now();
        let deadline = self.limit.deadline(now);
        loop {
            self.alive.stay(now).inspect_err(|_| self.transport.abandon())?;
            let until = self.alive.next().map_or(deadline, |next| next.min(deadline));
            if let Some(completion) = self.transport.poll(until)? {
                return Ok(completion);
            }
            if until == deadline {
                self.transport.abandon();
                return Err(Error::TimedOut { awaited: "answer to a command" });
            }
            now = Instant::now();
        }
    }

    /// Reads whole blocks.
    pub fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        // SAFETY: the target is borrowed until all pieces have ended.
        unsafe { self.read_to(offset, target.as_mut_ptr(), target.len()) }
    }

    /// Writes whole blocks. Durable after `flush`.
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<()> {
        // SAFETY: the source is borrowed until all pieces have ended.
        unsafe { self.write_from(offset, source.as_ptr(), source.len()) }
    }

    /// As `read`.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, and nobody else uses them.
    pub unsafe fn read_to(&mut self, offset: u64, target: *mut u8, length: usize) -> Result<()> {
        self.check(offset, length as u64)?;
        self.in_pieces("read", length, |queue, at, length| {
            // SAFETY: the piece lies in the target, and has ended when this function returns.
            unsafe { queue.submit_read(offset + at as u64, target.wrapping_add(at), length) }
        })
    }

    /// As `write`.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes.
    pub unsafe fn write_from(
        &mut self,
        offset: u64,
        source: *const u8,
        length: usize,
    ) -> Result<()> {
        self.check(offset, length as u64)?;
        self.in_pieces("write", length, |queue, at, length| {
            // SAFETY: the piece lies in the source, and has ended when this function returns.
            unsafe { queue.submit_write(offset + at as u64, source.wrapping_add(at), length) }
        })
    }

    /// Makes durable what was written. Sends nothing if it is durable anyway.
    pub fn flush(&mut self) -> Result<()> {
        let flush = Command::Flush { namespace: self.traits.namespace };
        match self.traits.has_volatile_cache {
            true => self.execute("flush", &flush, Data::None),
            false => Ok(()),
        }
    }

    /// Makes whole blocks read as zeros: by a command without data, or, where the controller has
    /// none or says that it does not work there, by writing them. (Linux says so of files on file
    /// systems without that operation.)
    pub fn write_zeroes(&mut self, offset: u64, length: u64, may_deallocate: bool) -> Result<()> {
        self.check(offset, length)?;
        let most = u64::from(command::BLOCKS_MAX) << self.traits.shape.block_shift;
        let mut at = 0;
        while at < length && self.traits.can_write_zeroes {
            let bytes = most.min(length - at);
            let blocks = self.blocks(offset + at, bytes, most)?;
            let namespace = self.traits.namespace;
            let zero = Command::WriteZeroes { namespace, blocks, may_deallocate };
            match self.execute("write zeroes", &zero, Data::None) {
                Err(Error::Refused { status, .. }) if !status.may_be_retried() => {
                    self.traits.can_write_zeroes = false;
                }
                result => {
                    result?;
                    at += bytes;
                }
            }
        }
        let zeros = vec![0; self.traits.transfer_bytes_max.min(length - at) as usize];
        while at < length {
            let bytes = (length - at).min(zeros.len() as u64);
            self.write(offset + at, &zeros[..bytes as usize])?;
            at += bytes;
        }
        Ok(())
    }

    /// Tells the controller that nobody needs what whole blocks hold. Errors: `Unsuitable` if it
    /// does not listen.
    pub fn discard(&mut self, offset: u64, length: u64) -> Result<()> {
        if !self.traits.can_deallocate {
            return Err(Error::Unsuitable { why: "the controller cannot deallocate" });
        }
        self.check(offset, length)?;
        let most = DISCARD_BYTES_MAX.max(self.traits.shape.block_bytes());
        let mut at = 0;
        while at < length {
            let bytes = most.min(length - at);
            let range = command::encode_range(self.blocks(offset + at, bytes, most)?);
            let deallocate = Command::Deallocate { namespace: self.traits.namespace, ranges: 1 };
            self.execute("discard", &deallocate, Data::of(&range))?;
            at += bytes;
        }
        Ok(())
    }

    /// Ends another controller of this host: when this returns nothing that it was sent changes the
    /// namespace any more.
    pub fn end_controller(&mut self, instance: u64) -> Result<()> {
        let namespace = self.traits.namespace;
        let end = Command::EndController { namespace, instance };
        self.execute("end controller", &end, Data::None)
    }

    /// Ends the connection.
    pub fn abandon(&mut self) {
        self.transport.abandon();
    }

    /// Sends a command that is the only one under way, and waits for its end.
    pub(super) fn execute(
        &mut self,
        name: &'static str,
        command: &Command,
        data: Data,
    ) -> Result<()> {
        // SAFETY: the caller has lent the data until this returns; all errors end the connection.
        unsafe { self.transport.submit(command.encode(), data) }?;
        check_status(name, &self.wait()?)
    }

    /// Has `submit` send the pieces of a range, as many at a time as the queue takes, and waits for
    /// all of them.
    fn in_pieces(
        &mut self,
        name: &'static str,
        length: usize,
        mut submit: impl FnMut(&mut Self, usize, usize) -> Result<CommandId>,
    ) -> Result<()> {
        let most = usize::try_from(self.traits.transfer_bytes_max).unwrap_or(usize::MAX);
        let (mut at, mut result) = (0, Ok(()));
        while (at < length && result.is_ok()) || self.transport.under_way() > 0 {
            let may_submit = self.transport.under_way() < self.transport.depth();
            if at < length && result.is_ok() && may_submit {
                let bytes = most.min(length - at);
                submit(self, at, bytes)?;
                at += bytes;
                continue;
            }
            let ended = self.wait()?;
            result = result.and(check_status(name, &ended));
        }
        result
    }

    /// Errors: not whole blocks of the namespace.
    fn check(&self, offset: u64, length: u64) -> Result<()> {
        let shape = &self.traits.shape;
        let is_whole = |value: u64| value % shape.block_bytes() == 0;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= shape.bytes());
        if is_whole(offset) && is_whole(length) && is_inside { Ok(()) } else { Err(Error::Invalid) }
    }

    /// The blocks of a range. Errors: as `check`; none, or more than `most` bytes.
    fn blocks(&self, offset: u64, length: u64, most: u64) -> Result<Blocks> {
        self.check(offset, length)?;
        let shift = self.traits.shape.block_shift;
        match (1..=most).contains(&length) {
            true => Ok(Blocks { first: offset >> shift, count: (length >> shift) as u32 }),
            false => Err(Error::Invalid),
        }
    }
}

/// Errors: the command did not do what it says.
pub(super) fn check_status(command: &'static str, ended: &Completion) -> Result<()> {
    match ended.status {
        status if status.is_success() => Ok(()),
        status if status.code() == Status::CONNECT_INVALID && ended.result == INVALID_HOST_ID => {
            Err(Error::Unauthenticated { why: IMPOSTOR })
        }
        status => Err(Error::Refused { command, status }),
    }
}
