//! Mappings across fork, exec and the end of the process.

use core::ffi::c_void;

use cairn_core::SlotId;
use cairn_platform::process;

use super::create::{Request, reserve};
use super::{MAPPINGS, Mapping, any, end};
use crate::error::Result;
use crate::kernel::latch::Held;
use crate::mount::Mount;

/// Keeps mappings from being added or ended until the result is dropped, in this process and in a
/// child forked meanwhile. So the child has a consistent list and the descriptions in it. Errors:
/// `EDEADLK`.
pub fn quiet() -> Result<Held<'static>> {
    MAPPINGS.latch.hold()
}

/// Retains the mappings of a forked child whose creation was not seen. Pages of a file that is gone
/// become zeros.
pub(crate) fn retain(mount: &Mount, slot: SlotId) {
    // The list is as the parent left it.
    let _ = MAPPINGS.with(|list| {
        list.retain(|mapping| {
            let is_held = mount.fs().retain(slot, mapping.handle).is_ok();
            if !is_held {
                detach_pages(mapping);
            }
            is_held
        });
    });
}

/// Replaces a mapping of ours by zeros.
fn detach_pages(mapping: &Mapping) {
    let request = Request {
        address: mapping.pages.start as *mut c_void,
        length: mapping.pages.len(),
        protection: mapping.manner.protection,
        flags: libc::MAP_FIXED,
        offset: 0,
    };
    // SAFETY: replaces only the pages of the mapping.
    let _ = unsafe { reserve(&request, request.protection) };
}

/// Prepares for an exec, which ends all mappings. The executed program may never look at the store,
/// so files mapped through inherited descriptions stop counting as open for writing. If the exec
/// fails, the process keeps the content it sees, and its stores become private. Returns whether
/// there are mappings.
pub(crate) fn before_exec(mount: &Mount, slot: SlotId) -> bool {
    if !any() {
        return false;
    }
    let mine = process::generation();
    let is_inherited = |mapping: &Mapping| mapping.manner.stores && mapping.generation != mine;
    let given_up = MAPPINGS.with(|list| {
        let mut given_up = Vec::new();
        while let Some(found) = list.iter().find(|mapping| is_inherited(mapping)) {
            let old = found.handle;
            let Ok(new) = mount.fs().map_file(&mount.caller(), old, false) else { break };
            for mapping in list.iter_mut().filter(|mapping| mapping.handle == old) {
                mapping.handle = new;
                if mapping.make_private(mount).is_err() {
                    detach_pages(mapping);
                }
            }
            given_up.push(old);
        }
        given_up
    });
    for handle in given_up.unwrap_or_default() {
        end(mount, slot, handle);
    }
    true
}

/// Ends all mappings at the end of the process, so that threads that run on for a moment cannot
/// store to files. Seals what was stored.
pub(crate) fn end_all(mount: &Mount, slot: SlotId) {
    if !any() {
        return;
    }
    let handles = MAPPINGS.with(|list| {
        let mut handles = Vec::new();
        for mut mapping in list.drain(..) {
            if mapping.manner.stores && mapping.make_private(mount).is_err() {
                detach_pages(&mapping);
            }
            if !handles.contains(&mapping.handle) {
                handles.push(mapping.handle);
            }
        }
        handles
    });
    for handle in handles.unwrap_or_default() {
        end(mount, slot, handle);
    }
}
