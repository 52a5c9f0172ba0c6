//! Errors of the initiator.

use core::fmt;

use cairn_platform::sys::Errno;

use super::claim::Holder;
use super::wire::Status;
use super::wire::pdu::{Malformed, Terminate};

/// Result of a call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// Error of a call of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// A system call failed.
    System {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The controller closed the connection.
    Closed,
    /// The controller violates the protocol. The text reads "the controller sent …".
    Malformed {
        /// What it has sent.
        what: &'static str,
    },
    /// The controller reports that this host violates the protocol.
    Terminated {
        /// The controller's reason.
        why: Terminate,
    },
    /// No answer came in time.
    TimedOut {
        /// Answer that was awaited.
        awaited: &'static str,
    },
    /// A command failed.
    Refused {
        /// Name of the command.
        command: &'static str,
        /// Status that it ended with.
        status: Status,
    },
    /// Another host has reserved the namespace.
    Reserved {
        /// That host.
        holder: Holder,
    },
    /// The controller or its namespace cannot be used.
    Unsuitable {
        /// Reason.
        why: &'static str,
    },
    /// Authentication failed, or one side refuses to authenticate.
    Unauthenticated {
        /// Reason, and the remedy.
        why: &'static str,
    },
    /// An argument is wrong: a range that reaches outside of the namespace, or not of whole blocks.
    Invalid,
}

impl Error {
    /// Whether the same call may succeed on a new connection, or later.
    pub fn may_be_retried(self) -> bool {
        match self {
            Error::Refused { status, .. } => status.may_be_retried(),
            Error::Reserved { .. }
            | Error::Unsuitable { .. }
            | Error::Unauthenticated { .. }
            | Error::Invalid => false,
            _ => true,
        }
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Malformed { what: malformed.what }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::System { action, errno } => {
                let why = std::io::Error::from_raw_os_error(errno.0);
                write!(formatter, "cannot {action}: {why}")
            }
            Error::Closed => formatter.write_str("the controller closed the connection"),
            Error::Malformed { what } => write!(formatter, "the controller sent {what}"),
            Error::Terminated { why } => write!(
                formatter,
                "the controller ended the connection: fatal error {:#x}, {:#x}",
                why.status, why.information
            ),
            Error::TimedOut { awaited } => write!(formatter, "no {awaited} in time"),
            Error::Refused { command, status } => write!(formatter, "{command} failed: {status}"),
            Error::Reserved { holder } => {
                write!(formatter, "the namespace is reserved by {holder}")
            }
            Error::Unsuitable { why } | Error::Unauthenticated { why } => formatter.write_str(why),
            Error::Invalid => {
                formatter.write_str("the range is outside the namespace, or not of whole blocks")
            }
        }
    }
}

impl std::error::Error for Error {}
