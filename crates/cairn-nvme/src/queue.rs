//! An I/O queue: reads and writes a namespace over one transport.
//!
//! Invariant: when a call returns, with or without an error, its memory is no longer in use. Ranges
//! are checked against the namespace before anything is sent.
//!
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

/// Most bytes that one command deallocates, so that the controller finishes it within a command's
/// time limit.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

const IMPOSTOR: &str = "the target knows this machine by another name, which is connected or has claimed a namespace: \
                        use that name, or give up its claim";

/// Properties of the namespace and the controller that a queue needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// NSID.
    pub namespace: u32,
    /// Size of the namespace and of its blocks.
    pub shape: identify::Namespace,
    /// Most data of a command (MDTS), bytes; a multiple of the block size.
    pub transfer_bytes_max: u64,
    /// Whether written data may be lost until they are flushed.
    pub has_volatile_cache: bool,
    /// Whether Write Zeroes is supported.
    pub can_write_zeroes: bool,
    /// Whether Dataset Management is supported.
    pub can_deallocate: bool,
    /// Whether reservations are supported.
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

/// Keeps the connection to the controller alive while I/O commands are under way: they do not
/// restart the controller's Keep Alive timer.
#[derive(Debug)]
pub(super) struct Alive<T> {
    admin: Arc<Mutex<Admin<T>>>,
    /// Time between checks whether a Keep Alive is due; zero: never.
    every: Duration,
    looked: Instant,
}

impl<T: Transport> Alive<T> {
    /// Uses `admin`, the admin queue of a controller whose Keep Alive timeout is `keep_alive`.
    pub(super) fn new(admin: Arc<Mutex<Admin<T>>>, keep_alive: Duration) -> Alive<T> {
        // The admin queue may have been idle for half of the time already.
        Alive { admin, every: keep_alive / 4, looked: Instant::now() }
    }

    /// Time of the next check; `None`: never.
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
    /// Queue over `transport`, which is connected. A command without an answer in time ends the
    /// connection.
    pub(super) fn new(transport: T, traits: Traits, limit: Limit, alive: Alive<T>) -> Queue<T> {
        Queue { transport, traits, limit, alive }
    }

    /// Sets the deadline for all commands from now on; `None`: only the limit of each command
    /// applies.
    pub fn set_deadline(&mut self, all: Option<Instant>) {
        self.limit.all = all;
    }

    /// Properties of the namespace and the controller.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Most commands under way at the same time.
    pub fn depth(&self) -> usize {
        self.transport.depth()
    }

    /// Sends a read of whole blocks, at most `transfer_bytes_max` bytes.
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

    /// Sends a write of whole blocks, at most `transfer_bytes_max` bytes.
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

    /// Waits for the next command that ends. Errors: none ended in time; the connection and all
    /// commands have ended.
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
        // SAFETY: `target` is borrowed until all pieces have ended.
        unsafe { self.read_to(offset, target.as_mut_ptr(), target.len()) }
    }

    /// Writes whole blocks. Durable after `flush`.
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<()> {
        // SAFETY: `source` is borrowed until all pieces have ended.
        unsafe { self.write_from(offset, source.as_ptr(), source.len()) }
    }

    /// As `read`.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, and nobody else uses them.
    pub unsafe fn read_to(&mut self, offset: u64, target: *mut u8, length: usize) -> Result<()> {
        self.check(offset, length as u64)?;
        self.in_pieces("read", length, |queue, at, length| {
            // SAFETY: the piece lies in `target`, and has ended when `read_to` returns.
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
            // SAFETY: the piece lies in `source`, and has ended when `write_from` returns.
            unsafe { queue.submit_write(offset + at as u64, source.wrapping_add(at), length) }
        })
    }

    /// Makes written data durable. Sends nothing to a controller without a volatile cache.
    pub fn flush(&mut self) -> Result<()> {
        let flush = Command::Flush { namespace: self.traits.namespace };
        match self.traits.has_volatile_cache {
            true => self.execute("flush", &flush, Data::None),
            false => Ok(()),
        }
    }

    /// Makes whole blocks read as zeros. Sends Write Zeroes, which carries no data. Writes zeros
    /// instead if the controller lacks the command or refuses it: Linux refuses it for a file on a
    /// file system without that operation.
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

    /// Tells the controller that the contents of whole blocks are not needed. Errors: `Unsuitable`
    /// if the controller cannot deallocate.
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

    /// Ends another controller of this host. When this returns, no command sent to that controller
    /// changes the namespace any more.
    pub fn end_controller(&mut self, instance: u64) -> Result<()> {
        let namespace = self.traits.namespace;
        let end = Command::EndController { namespace, instance };
        self.execute("end controller", &end, Data::None)
    }

    /// Ends the connection.
    pub fn abandon(&mut self) {
        self.transport.abandon();
    }

    /// Sends a command and waits until it ends. No other command may be under way.
    pub(super) fn execute(
        &mut self,
        name: &'static str,
        command: &Command,
        data: Data,
    ) -> Result<()> {
        // SAFETY: the caller lends the data until this function returns; every error ends the
        // connection.
        unsafe { self.transport.submit(command.encode(), data) }?;
        check_status(name, &self.wait()?)
    }

    /// Calls `submit` for each piece of a range, with as many pieces under way as the queue takes,
    /// and waits for all of them.
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

    /// Errors: `Invalid` unless the range lies in the namespace and consists of whole blocks.
    fn check(&self, offset: u64, length: u64) -> Result<()> {
        let shape = &self.traits.shape;
        let is_whole = |value: u64| value % shape.block_bytes() == 0;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= shape.bytes());
        if is_whole(offset) && is_whole(length) && is_inside { Ok(()) } else { Err(Error::Invalid) }
    }

    /// Converts a range to blocks. Errors: as `check`; the range is empty or longer than `most`
    /// bytes.
    fn blocks(&self, offset: u64, length: u64, most: u64) -> Result<Blocks> {
        self.check(offset, length)?;
        let shift = self.traits.shape.block_shift;
        match (1..=most).contains(&length) {
            true => Ok(Blocks { first: offset >> shift, count: (length >> shift) as u32 }),
            false => Err(Error::Invalid),
        }
    }
}

/// Errors: the command failed.
pub(super) fn check_status(command: &'static str, ended: &Completion) -> Result<()> {
    match ended.status {
        status if status.is_success() => Ok(()),
        status if status.code() == Status::CONNECT_INVALID && ended.result == INVALID_HOST_ID => {
            Err(Error::Unauthenticated { why: IMPOSTOR })
        }
        status => Err(Error::Refused { command, status }),
    }
}
