//! Commands of a queue that are under way, and what each still has to send or to receive.
//!
//! Invariant: an identifier from a peer names a command under way, or the connection ends. Besides
//! the command's place it carries a count, so that a late or duplicate answer does not end the next
//! command in that place.

use crate::transport::{CommandId, Data};
use crate::wire::pdu::{Fault, Malformed, Transfer};

/// Bits of an identifier that hold the place. The others hold the count.
const PLACE_BITS: u32 = 10;
/// Most commands of a queue.
pub const DEPTH_MAX: usize = 1 << PLACE_BITS;

/// A command under way.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Memory of its data.
    pub data: Data,
    /// Whether the data are in the capsule. The controller does not ask for them then.
    pub is_in_capsule: bool,
    /// Number of its PDUs that were not sent yet.
    pub unsent: u32,
    /// Number of R2T that were not answered yet.
    pub transfers: u32,
    /// Number of bytes of the data that were received, or asked for.
    pub reached: usize,
    /// Whether the controller has said that it sends no more data.
    pub has_last: bool,
    /// Whether some data came with a wrong digest.
    pub is_damaged: bool,
}

/// All commands of a queue.
#[derive(Debug)]
pub struct Commands {
    places: Vec<Place>,
    free: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    count: u16,
    pending: Option<Pending>,
}

fn malformed(fault: Fault, what: &'static str) -> Malformed {
    Malformed { fault, what }
}

impl Commands {
    /// Room for `depth` commands at a time; there are none yet.
    pub fn new(depth: usize) -> Commands {
        assert!((1..=DEPTH_MAX).contains(&depth), "identifiers have room for so many");
        let free = (0..depth as u16).rev().collect();
        Commands { places: vec![Place { count: 0, pending: None }; depth], free }
    }

    /// Most commands at a time.
    pub fn depth(&self) -> usize {
        self.places.len()
    }

    /// Number of commands under way.
    pub fn under_way(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a command. There must be room for it.
    pub fn add(&mut self, data: Data, is_in_capsule: bool) -> CommandId {
        let index = self.free.pop().expect("the caller does not exceed the depth");
        let place = &mut self.places[usize::from(index)];
        place.pending = Some(Pending {
            data,
            is_in_capsule,
            unsent: 1,
            transfers: 0,
            reached: 0,
            has_last: false,
            is_damaged: false,
        });
        CommandId(place.count << PLACE_BITS | index)
    }

    /// Returns the command with that identifier. Errors: there is none.
    pub fn get(&mut self, id: u16) -> Result<&mut Pending, Malformed> {
        let index = usize::from(id) % DEPTH_MAX;
        let place = self.places.get_mut(index).filter(|place| place.count == id >> PLACE_BITS);
        place
            .and_then(|place| place.pending.as_mut())
            .ok_or(malformed(Fault::HeaderField(8), "an identifier that no command has"))
    }

    /// Removes a command that ended.
    pub fn remove(&mut self, id: u16) {
        let index = id % DEPTH_MAX as u16;
        let place = &mut self.places[usize::from(index)];
        place.pending = None;
        place.count = (place.count + 1) % (1 << (u16::BITS - PLACE_BITS));
        self.free.push(index);
    }
}

impl Pending {
    /// Accepts data of the command. Returns the address where they belong. Errors: other data are
    /// due.
    pub fn receive(&mut self, transfer: &Transfer, is_last: bool) -> Result<*mut u8, Malformed> {
        let Data::In { address, length } = self.data else {
            return Err(malformed(Fault::Sequence, "data of a command that has none"));
        };
        let place = self.advance(transfer, length)?;
        if self.has_last {
            return Err(malformed(Fault::Sequence, "data after the last data of a command"));
        }
        self.has_last = is_last;
        Ok(address.wrapping_add(place))
    }

    /// Accepts an R2T for data of the command. Returns the address of the data. Errors: the
    /// controller may not ask, or other data are due.
    pub fn request(
        &mut self,
        transfer: &Transfer,
        transfers_max: u32,
    ) -> Result<*const u8, Malformed> {
        let Data::Out { address, length } = self.data else {
            return Err(malformed(Fault::Sequence, "an R2T for a command that sends nothing"));
        };
        if self.is_in_capsule {
            return Err(malformed(Fault::Sequence, "an R2T for data that were in the capsule"));
        }
        if self.transfers >= transfers_max {
            return Err(malformed(Fault::LimitExceeded, "more R2T than this host supports"));
        }
        let place = self.advance(transfer, length)?;
        self.transfers += 1;
        Ok(address.wrapping_add(place))
    }

    /// Checks that a transfer continues where the last one ended, and ends within the data.
    fn advance(&mut self, transfer: &Transfer, length: usize) -> Result<usize, Malformed> {
        let (offset, end) =
            (transfer.offset as usize, transfer.offset as usize + transfer.length as usize);
        if end > length {
            return Err(malformed(Fault::OutOfRange, "a transfer outside of the command's data"));
        }
        if offset != self.reached {
            return Err(malformed(Fault::Sequence, "a transfer that does not follow the last one"));
        }
        self.reached = end;
        Ok(offset)
    }

    /// Accepts that the command ended, as the controller says. Errors: it cannot have ended.
    pub fn check_end(&self, is_success: bool) -> Result<(), Malformed> {
        if self.unsent > 0 {
            return Err(malformed(
                Fault::Sequence,
                "the end of a command before all of it was sent",
            ));
        }
        let is_whole = self.is_in_capsule || self.reached == self.data.length();
        match is_success && !is_whole {
            true => {
                Err(malformed(Fault::Sequence, "the success of a command without all its data"))
            }
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(offset: u32, length: u32) -> Transfer {
        Transfer { command_id: 0, tag: 0, offset, length }
    }

    fn pending(data: Data) -> Pending {
        let mut commands = Commands::new(1);
        let id = commands.add(data, false);
        *commands.get(id.0).unwrap()
    }

    #[test]
    fn late_answer_does_not_end_the_next_command_in_its_place() {
        let mut commands = Commands::new(2);
        let first = commands.add(Data::None, false);
        commands.remove(first.0);
        let second = commands.add(Data::None, false);
        assert_eq!(first.0 % DEPTH_MAX as u16, second.0 % DEPTH_MAX as u16);
        assert!(commands.get(first.0).is_err());
        assert!(commands.get(second.0).is_ok());
        assert!(commands.get(5).is_err(), "a place that does not exist");
        for _ in 0..200 {
            let id = commands.add(Data::None, false);
            assert!(commands.get(id.0).is_ok());
            commands.remove(id.0);
        }
        assert_eq!(commands.under_way(), 1);
    }

    #[test]
    fn data_arrive_in_order_within_the_buffer_and_end_once() {
        let mut buffer = [0; 64];
        let start = buffer.as_mut_ptr();
        let mut command = pending(Data::into(&mut buffer));
        assert_eq!(command.receive(&transfer(0, 32), false), Ok(start));
        let fault = |result: Result<*mut u8, Malformed>| result.unwrap_err().fault;
        assert_eq!(fault(command.receive(&transfer(0, 32), false)), Fault::Sequence);
        assert_eq!(fault(command.receive(&transfer(32, 36), false)), Fault::OutOfRange);
        assert_eq!(fault(command.receive(&transfer(u32::MAX - 3, 4), false)), Fault::OutOfRange);
        command.unsent = 0;
        assert!(command.check_end(true).is_err() && command.check_end(false).is_ok());
        assert_eq!(command.receive(&transfer(32, 32), true), Ok(start.wrapping_add(32)));
        assert!(command.check_end(true).is_ok());
        assert!(command.request(&transfer(0, 4), 1).is_err(), "it receives");
    }

    #[test]
    fn data_are_asked_for_in_order_and_not_too_many_at_a_time() {
        let buffer = [0; 64];
        let mut command = pending(Data::of(&buffer));
        assert_eq!(command.request(&transfer(0, 32), 1), Ok(buffer.as_ptr()));
        let fault = |result: Result<*const u8, Malformed>| result.unwrap_err().fault;
        assert_eq!(fault(command.request(&transfer(32, 32), 1)), Fault::LimitExceeded);
        command.transfers = 0;
        assert_eq!(fault(command.request(&transfer(36, 4), 1)), Fault::Sequence);
        assert_eq!(command.request(&transfer(32, 32), 1), Ok(buffer.as_ptr().wrapping_add(32)));
        assert!(command.check_end(true).is_err(), "not sent yet");
        command.is_in_capsule = true;
        command.transfers = 0;
        assert_eq!(fault(command.request(&transfer(0, 4), 1)), Fault::Sequence);
    }
}
