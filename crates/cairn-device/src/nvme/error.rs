//! What can go wrong between us and a controller.

use core::fmt;

use crate::sys::Errno;

use super::claim::Holder;
use super::wire::Status;
use super::wire::pdu::{Malformed, Terminate};

/// Result of anything here.
pub type Result<T> = core::result::Result<T, Error>;

/// Why something did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// A system call failed.
    System {
        /// What was attempted, a verb.
        action: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The controller closed the connection.
    Closed,
    /// The controller does not keep to the protocol: "the controller has sent …".
    Malformed {
        /// What.
        what: &'static str,
    },
    /// The controller says that we do not keep to the protocol.
    Terminated {
        /// Its reasons.
        why: Terminate,
    },
    /// Nothing came in time.
    TimedOut {
        /// What was waited for.
        awaited: &'static str,
    },
    /// A command failed.
    Refused {
        /// Which.
        command: &'static str,
        /// How.
        status: Status,
    },
    /// The namespace is another host's.
    Reserved {
        /// Whose.
        holder: Holder,
    },
    /// The controller or its namespace cannot be used.
    Unsuitable {
        /// Why.
        why: &'static str,
    },
    /// One of both could not prove who it is, or does not want to.
    Unauthenticated {
        /// Why, and what is to be done.
        why: &'static str,
    },
    /// An argument makes no sense: a range outside of the namespace, or not of whole blocks.
    Invalid,
}

impl Error {
    /// Whether the same may succeed on a new connection, or some time later.
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

impl From<Error> for cairn_core::Error {
    fn from(error: Error) -> cairn_core::Error {
        match error {
            Error::System { errno: Errno(libc::EFAULT), .. } => cairn_core::Error::Fault,
            Error::Invalid => cairn_core::Error::Invalid,
            _ => cairn_core::Error::Io,
        }
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
            Error::Malformed { what } => write!(formatter, "the controller has sent {what}"),
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
            Error::Invalid => formatter.write_str("a range that is not one of whole blocks"),
        }
    }
}

impl std::error::Error for Error {}
