//! Mappings at an exec and at the end of the process. A fork needs only the list
//! (`task/mappings.rs`).

use cairn_core::SlotId;
use cairn_platform::process;

use super::unmap::end;
use crate::mount::Mount;
use crate::task::mappings::{MAPPINGS, Mapping, any};

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
                    mapping.detach_pages();
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
                mapping.detach_pages();
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
