//! Path resolution of the reference model, component by component, as path_resolution(7) specifies.

use crate::model::{Kind, Model, NodeId, ROOT};
use cairn_core::{Caller, Error, NAME_BYTES_MAX, PATH_BYTES_MAX, Result};

/// Mount point of the model. An absolute link target below it stays inside the model.
pub const MOUNT: &[u8] = b"/cairn";
const SYMLINKS_MAX: usize = 40;
const EXECUTE: u32 = 1;

/// Treatment of a symbolic link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Follow it.
    Follow,
    /// Follow it only if a slash comes after it.
    Keep,
    /// Never follow it: the caller creates or removes the name itself.
    Name,
    /// Follow it unless a slash comes after it; creating a file refuses such a path.
    Create,
}

/// Result of a path resolution.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Directory that holds the last component.
    pub parent: NodeId,
    /// Last component; empty if the path names the base itself.
    pub name: Vec<u8>,
    /// Node that the last component names, if it exists.
    pub target: Option<NodeId>,
    /// Whether a slash follows the last component.
    pub trailing_slash: bool,
}

impl Walk {
    /// Whether the name can be created or removed: it is not empty, `.` or `..`.
    pub fn is_ordinary(&self) -> bool {
        !matches!(self.name.as_slice(), b"" | b"." | b"..")
    }

    /// Returns the node that the path names. Errors: `NotFound`; `NotDirectory` if a slash follows
    /// the name of something else.
    pub fn existing(&self, model: &Model) -> Result<NodeId> {
        let target = self.target.ok_or(Error::NotFound)?;
        if self.trailing_slash && !model.node(target).is_directory() {
            return Err(Error::NotDirectory);
        }
        Ok(target)
    }
}

fn without_leading_slashes(path: &[u8]) -> &[u8] {
    &path[path.iter().take_while(|&&byte| byte == b'/').count()..]
}

fn below_mount(path: &[u8]) -> Result<&[u8]> {
    let path = without_leading_slashes(path);
    let rest = path.strip_prefix(&MOUNT[1..]).ok_or(Error::Escapes)?;
    if rest.first().is_none_or(|&byte| byte == b'/') { Ok(rest) } else { Err(Error::Escapes) }
}

/// Resolves `path` from the directory `base`.
pub(crate) fn walk(
    model: &Model,
    caller: &Caller,
    base: NodeId,
    path: &[u8],
    last: Last,
) -> Result<Walk> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    let mut at = base;
    let mut rest = without_leading_slashes(path).to_vec();
    if rest.is_empty() {
        return Ok(Walk { parent: base, name: rest, target: Some(base), trailing_slash: false });
    }
    let mut links = 0;
    loop {
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        let after = without_leading_slashes(tail);
        let node = model.node(at);
        if !node.is_directory() {
            return Err(Error::NotDirectory);
        }
        node.permit(caller, EXECUTE)?;
        let target = component(model, at, name)?;
        let slash = !tail.is_empty();
        let link = target.and_then(|id| match &model.node(id).kind {
            Kind::Symlink(target) => Some(target),
            _ => None,
        });
        let follows = match last {
            _ if !after.is_empty() => true,
            Last::Follow => true,
            Last::Keep => slash,
            Last::Name => false,
            Last::Create => !slash,
        };
        if let Some(link) = link.filter(|_| follows) {
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(Error::SymlinkLoop);
            }
            let joined = [link.as_slice(), tail].concat();
            if link.first() == Some(&b'/') {
                at = ROOT;
                rest = without_leading_slashes(below_mount(&joined)?).to_vec();
            } else {
                rest = joined;
            }
            if rest.is_empty() {
                return Ok(Walk {
                    parent: at,
                    name: rest,
                    target: Some(at),
                    trailing_slash: false,
                });
            }
            continue;
        }
        if after.is_empty() {
            return Ok(Walk { parent: at, name: name.to_vec(), target, trailing_slash: slash });
        }
        at = target.ok_or(Error::NotFound)?;
        rest = after.to_vec();
    }
}

fn component(model: &Model, directory: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
    let Kind::Directory { entries, parent } = &model.node(directory).kind else {
        return Err(Error::NotDirectory);
    };
    match name {
        b"." => Ok(Some(directory)),
        b".." if directory == ROOT => Err(Error::Escapes),
        b".." => model.exists(*parent).then_some(Some(*parent)).ok_or(Error::NotFound),
        _ if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        _ => Ok(entries.get(name).copied()),
    }
}
