//! Paths that leave the mount through a link or `..`: where they lead.
//!
//! Does not follow them outside; the caller's own call does.

use crate::error::{Errno, PathError, PathResult};
use crate::files::path;
use crate::files::place::Place;
use crate::kernel::configuration;
use crate::mount::Mount;

/// Most times that one path may leave the mount and come back.
const SYMLINKS_MAX: usize = 40;

impl Mount {
    /// Converts the result of an operation on `place`. If the path left the namespace, the error
    /// says where it leads.
    pub fn at<T>(
        &self,
        place: &Place,
        follow: bool,
        result: cairn_core::Result<T>,
    ) -> PathResult<T> {
        match result {
            Ok(value) => Ok(value),
            Err(cairn_core::Error::Escapes) => Err(self.elsewhere(place, follow)),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds where a path that left the mount leads: outside, or, if it came back, to a place below
    /// the mount that the caller's own call then finds.
    #[cold]
    fn elsewhere(&self, place: &Place, follow: bool) -> PathError {
        let caller = self.caller();
        let mut outside = match self.fs().escape_path(&caller, place.base, place.path, follow) {
            Ok(outside) => outside,
            Err(error) => return error.into(),
        };
        for _ in 0..=SYMLINKS_MAX {
            let Some(rest) = path::inside(configuration::get(), &outside) else { break };
            match self.fs().escape_path(&caller, cairn_core::ROOT, rest, follow) {
                Ok(next) => outside = next,
                // The path stays inside or fails; the caller's next call finds out which.
                Err(_) => return terminated(outside),
            }
        }
        match path::inside(configuration::get(), &outside) {
            None => terminated(outside),
            Some(_) => Errno(libc::ELOOP).into(),
        }
    }
}

fn terminated(outside: Vec<u8>) -> PathError {
    match std::ffi::CString::new(outside) {
        Ok(outside) => PathError::Elsewhere(outside),
        Err(_) => Errno(libc::EINVAL).into(),
    }
}
