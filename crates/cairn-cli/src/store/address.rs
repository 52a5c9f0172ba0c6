//! Addresses of targets as the user writes them.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::{Error, Result, TargetError};

/// Port of NVMe over TCP.
const DEFAULT_PORT: u16 = 4420;

/// Resolves `HOST` or `HOST:PORT` to its first address.
pub fn resolve(text: &str) -> Result<SocketAddr> {
    let with_port = text.to_socket_addrs();
    let addresses = with_port.or_else(|_| (text, DEFAULT_PORT).to_socket_addrs());
    let refused =
        |source: io::Error| Error::Target(TargetError::Address { text: text.to_string(), source });
    let nobody = || refused(io::ErrorKind::NotFound.into());
    addresses.map_err(refused)?.next().ok_or_else(nobody)
}
