//! Backing of a namespace, as the user writes it.

use cairn_target::Namespace;
use std::fs::OpenOptions;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::{fmt, io};

use crate::error::{Error, SettingError, TargetError};
use crate::size;

/// Default size of a logical block.
pub const BLOCK_BYTES: u64 = 4096;

/// Range of block sizes; only powers of two are allowed.
const BLOCKS_BYTES: RangeInclusive<u64> = 512..=65536;

/// Checks the size of a logical block. Errors: the allowed sizes.
pub fn check_block_bytes(bytes: u64) -> Result<u64, String> {
    match bytes.is_power_of_two() && BLOCKS_BYTES.contains(&bytes) {
        true => Ok(bytes),
        false => {
            let (least, most) = (BLOCKS_BYTES.start(), BLOCKS_BYTES.end());
            Err(format!("expected a power of two from {least} to {most}"))
        }
    }
}

/// Parses and checks the size of a logical block on the command line.
pub fn parse_block_bytes(text: &str) -> Result<u64, String> {
    check_block_bytes(text.parse().unwrap_or(0))
}

/// Where the blocks of a namespace are.
#[derive(Clone, Debug)]
pub enum Place {
    /// In memory of this size in bytes.
    Memory(u64),
    /// In a file, which is created with this size if it does not exist.
    File(PathBuf, Option<u64>),
    /// On a block device.
    Device(PathBuf),
}

impl Place {
    /// Parses `ram:SIZE`, `file:PATH` or `block:DEVICE`.
    pub fn parse(text: &str) -> Result<Place, Error> {
        match text.split_once(':') {
            Some(("ram", size)) => match size::parse(size) {
                Some(bytes) => Ok(Place::Memory(bytes)),
                None => Err(Error::Setting(SettingError::Size { text: size.to_string() })),
            },
            Some(("file", path)) => Ok(Place::File(path.into(), None)),
            Some(("block", path)) => Ok(Place::Device(path.into())),
            _ => Err(Error::Target(TargetError::ExportKind { text: text.to_string() })),
        }
    }

    /// Opens the namespace.
    pub fn open(&self, block_bytes: u64) -> io::Result<Namespace> {
        match self {
            Place::Memory(bytes) => Namespace::in_memory(*bytes, block_bytes),
            Place::File(path, size) => {
                if let Some(bytes) = size {
                    make(path, *bytes)?;
                }
                Namespace::in_file(path, block_bytes)
            }
            Place::Device(path) => {
                if !std::fs::metadata(path)?.file_type().is_block_device() {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a block device"));
                }
                Namespace::in_file(path, block_bytes)
            }
        }
    }
}

/// Creates a file of this size. An existing file stays as it is.
fn make(path: &PathBuf, bytes: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(file) => file.set_len(bytes).inspect_err(|_| drop(std::fs::remove_file(path))),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Memory(bytes) => write!(formatter, "ram:{}", size::human(*bytes)),
            Place::File(path, _) => write!(formatter, "file:{}", path.display()),
            Place::Device(path) => write!(formatter, "block:{}", path.display()),
        }
    }
}
