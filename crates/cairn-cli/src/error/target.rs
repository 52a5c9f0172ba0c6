//! An NVMe/TCP target that cannot be started, reached or asked.

use cairn_agent::model::error::why;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::error::exit_code::{EXIT_FAILURE, EXIT_USAGE};

/// An NVMe/TCP target that cannot be started, reached or asked.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// An unknown kind of export.
    #[error("{text:?} cannot be exported; write ram:SIZE, file:PATH or block:DEVICE")]
    ExportKind {
        /// Value that the user gave.
        text: String,
    },
    /// An export that cannot be opened.
    #[error(
        "cannot export {export}: {}; the file must exist and have the size of the namespace",
        why(source)
    )]
    Export {
        /// Value that the user gave.
        export: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A file of secrets that cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Secrets {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: cairn_nvme::Error,
    },
    /// An invalid name of a subsystem.
    #[error("{text:?} is not the name of a subsystem; write one like nqn.2026-11.io.cairn:target")]
    Nqn {
        /// Value that the user gave.
        text: String,
    },
    /// Invalid space for grants.
    #[error("{text:?} is not a place for grants; write ram:SIZE or dir:DIRECTORY:SIZE")]
    GrantSpace {
        /// Value that the user gave.
        text: String,
    },
    /// A target that does not answer on its control socket.
    #[error("cannot reach the target at {}: {}; is it running with --control?", path.display(), why(source))]
    Control {
        /// Its control socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A target that refuses a request.
    #[error("the target refused: {reason}")]
    TargetRefused {
        /// The reason.
        reason: String,
    },
    /// A subsystem name that is taken, or reserved for subsystems without namespaces.
    #[error("the subsystem name {text:?} is taken; choose another with --nqn")]
    NqnTaken {
        /// Value that the user gave.
        text: String,
    },
    /// An address that cannot be listened on.
    #[error("cannot listen at {address}: {}; choose another with {option}", why(source))]
    Listen {
        /// Option that names it.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// An unknown host.
    #[error("cannot find the host {text}: {}; write HOST or HOST:PORT", why(source))]
    Address {
        /// Value that the user gave.
        text: String,
        /// Error of the system.
        source: io::Error,
    },
    /// An error of a controller on another machine.
    #[error(
        "NVMe over TCP to {address}: {}; check that a target runs there and that this host may use it",
        why_remote(source)
    )]
    Remote {
        /// Its address.
        address: SocketAddr,
        /// The cause.
        source: cairn_nvme::Error,
    },
}

impl TargetError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            TargetError::ExportKind { .. }
            | TargetError::Export { .. }
            | TargetError::Secrets { .. }
            | TargetError::Nqn { .. }
            | TargetError::GrantSpace { .. }
            | TargetError::NqnTaken { .. }
            | TargetError::Address { .. } => EXIT_USAGE,
            TargetError::Control { .. }
            | TargetError::TargetRefused { .. }
            | TargetError::Listen { .. }
            | TargetError::Remote { .. } => EXIT_FAILURE,
        }
    }
}

/// Returns the text of an NVMe error; for a system call, without its number.
fn why_remote(source: &cairn_nvme::Error) -> String {
    match source {
        cairn_nvme::Error::System { action, errno } => {
            format!("cannot {action}: {}", why(&io::Error::from_raw_os_error(errno.0)))
        }
        other => other.to_string(),
    }
}
