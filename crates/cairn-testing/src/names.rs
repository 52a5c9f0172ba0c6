//! Operations of the reference model that create and remove names. Errors come in Linux's order.

use crate::model::{EXECUTE, Kind, Model, NodeId, ROOT, WRITE};
use crate::path::{Last, Walk};
use cairn_core::{Caller, Error, PATH_BYTES_MAX, RenameMode, Result};
use std::collections::BTreeMap;

const STICKY: u32 = 0o1000;

impl Model {
    /// Checks that `caller` may create the name that `walk` leads to.
    pub(crate) fn permit_creation(&self, caller: &Caller, walk: &Walk) -> Result<()> {
        if self.node(walk.parent).links == 0 {
            return Err(Error::NotFound);
        }
        self.node(walk.parent).permit(caller, WRITE | EXECUTE)
    }

    fn permit_removal(&self, caller: &Caller, parent: NodeId, victim: NodeId) -> Result<()> {
        let (directory, node) = (self.node(parent), self.node(victim));
        directory.permit(caller, WRITE | EXECUTE)?;
        let uid = caller.credentials.uid;
        let owns = uid == 0 || uid == node.uid || uid == directory.uid;
        if directory.permissions & STICKY != 0 && !owns {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    pub(crate) fn add_name(&mut self, caller: &Caller, parent: NodeId, name: &[u8], id: NodeId) {
        self.entries_mut(parent).insert(name.to_vec(), id);
        self.touch(caller, parent);
        self.node_mut(id).changed = caller.now.0;
        if let Kind::Directory { parent: above, .. } = &mut self.node_mut(id).kind {
            *above = parent;
            self.node_mut(parent).links += 1;
            self.node_mut(id).links += 2;
        } else {
            self.node_mut(id).links += 1;
        }
    }

    fn remove_name(&mut self, caller: &Caller, parent: NodeId, name: &[u8]) -> NodeId {
        let id = self.entries_mut(parent).remove(name).expect("the model walked to this name");
        self.touch(caller, parent);
        self.node_mut(id).changed = caller.now.0;
        if self.node(id).is_directory() {
            self.node_mut(parent).links -= 1;
            self.node_mut(id).links -= 2;
        } else {
            self.node_mut(id).links -= 1;
        }
        id
    }

    /// Creates a directory.
    pub fn make_directory(
        &mut self,
        caller: &Caller,
        base: NodeId,
        path: &[u8],
        mode: u32,
    ) -> Result<NodeId> {
        let walk = self.walk(caller, base, path, Last::Name)?;
        if walk.target.is_some() {
            return Err(Error::Exists);
        }
        self.permit_creation(caller, &walk)?;
        let kind = Kind::Directory { entries: BTreeMap::new(), parent: walk.parent };
        let id = self.add_node(kind, mode, caller);
        self.add_name(caller, walk.parent, &walk.name, id);
        Ok(id)
    }

    /// Creates a symbolic link.
    pub fn symlink(
        &mut self,
        caller: &Caller,
        target: &[u8],
        base: NodeId,
        path: &[u8],
    ) -> Result<NodeId> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let walk = self.walk_to_new_file(caller, base, path)?;
        self.permit_creation(caller, &walk)?;
        let id = self.add_node(Kind::Symlink(target.to_vec()), 0o777, caller);
        self.add_name(caller, walk.parent, &walk.name, id);
        Ok(id)
    }

    /// Resolves the path of a name to be created for something other than a directory.
    fn walk_to_new_file(&self, caller: &Caller, base: NodeId, path: &[u8]) -> Result<Walk> {
        let walk = self.walk(caller, base, path, Last::Name)?;
        match walk.target {
            Some(_) => Err(Error::Exists),
            None if walk.trailing_slash => Err(Error::NotFound),
            None => Ok(walk),
        }
    }

    /// Returns the target of a symbolic link. Errors: `Invalid` if the path names something else.
    pub fn read_link(&self, caller: &Caller, base: NodeId, path: &[u8]) -> Result<Vec<u8>> {
        match &self.node(self.resolve(caller, base, path, false)?).kind {
            Kind::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::Invalid),
        }
    }

    /// Gives a file a further name.
    pub fn link(
        &mut self,
        caller: &Caller,
        old: (NodeId, &[u8]),
        new: (NodeId, &[u8]),
        follow: bool,
    ) -> Result<()> {
        let id = self.resolve(caller, old.0, old.1, follow)?;
        let walk = self.walk_to_new_file(caller, new.0, new.1)?;
        self.permit_creation(caller, &walk)?;
        if self.node(id).is_directory() {
            return Err(Error::NotPermitted);
        }
        if self.node(id).links == 0 {
            return Err(Error::NotFound);
        }
        self.add_name(caller, walk.parent, &walk.name, id);
        Ok(())
    }

    /// Removes a name of something other than a directory.
    pub fn unlink(&mut self, caller: &Caller, base: NodeId, path: &[u8]) -> Result<()> {
        let walk = self.walk(caller, base, path, Last::Name)?;
        if !walk.is_ordinary() {
            return Err(Error::IsDirectory);
        }
        let id = walk.target.ok_or(Error::NotFound)?;
        let is_directory = self.node(id).is_directory();
        if walk.trailing_slash {
            return Err(if is_directory { Error::IsDirectory } else { Error::NotDirectory });
        }
        self.permit_removal(caller, walk.parent, id)?;
        if is_directory {
            return Err(Error::IsDirectory);
        }
        self.remove_name(caller, walk.parent, &walk.name);
        self.drop_if_unreachable(id);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, caller: &Caller, base: NodeId, path: &[u8]) -> Result<()> {
        let walk = self.walk(caller, base, path, Last::Name)?;
        match walk.name.as_slice() {
            b"." => return Err(Error::Invalid),
            b".." => return Err(Error::NotEmpty),
            b"" => return Err(Error::InUse),
            _ => {}
        }
        let id = walk.target.ok_or(Error::NotFound)?;
        self.permit_removal(caller, walk.parent, id)?;
        if !self.node(id).entries()?.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.remove_name(caller, walk.parent, &walk.name);
        self.drop_if_unreachable(id);
        Ok(())
    }

    /// Renames a file, directory or symbolic link, or exchanges two.
    pub fn rename(
        &mut self,
        caller: &Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let old = self.walk(caller, from.0, from.1, Last::Name)?;
        let new = self.walk(caller, to.0, to.1, Last::Name)?;
        if !old.is_ordinary() {
            return Err(Error::InUse);
        }
        if !new.is_ordinary() {
            let refused = mode == RenameMode::NoReplace;
            return Err(if refused { Error::Exists } else { Error::InUse });
        }
        let moved = old.target.ok_or(Error::NotFound)?;
        let moved_is_directory = self.node(moved).is_directory();
        match (new.target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (Some(other), RenameMode::Exchange)
                if new.trailing_slash && !self.node(other).is_directory() =>
            {
                return Err(Error::NotDirectory);
            }
            _ => {}
        }
        let new_slash = new.trailing_slash && mode != RenameMode::Exchange;
        if !moved_is_directory && (old.trailing_slash || new_slash) {
            return Err(Error::NotDirectory);
        }
        if moved_is_directory && self.is_below(new.parent, moved) {
            return Err(Error::Invalid);
        }
        if new.target.is_some_and(|target| self.is_below(old.parent, target)) {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange { Error::Invalid } else { Error::NotEmpty });
        }
        if new.target == Some(moved) {
            return Ok(());
        }
        self.permit_removal(caller, old.parent, moved)?;
        let Some(other) = new.target else {
            self.permit_creation(caller, &new)?;
            self.permit_move(caller, moved, &old, &new)?;
            self.remove_name(caller, old.parent, &old.name);
            self.add_name(caller, new.parent, &new.name, moved);
            return Ok(());
        };
        self.permit_removal(caller, new.parent, other)?;
        if mode == RenameMode::Exchange {
            self.permit_move(caller, moved, &old, &new)?;
            self.permit_move(caller, other, &old, &new)?;
            self.remove_name(caller, old.parent, &old.name);
            self.remove_name(caller, new.parent, &new.name);
            self.add_name(caller, new.parent, &new.name, moved);
            self.add_name(caller, old.parent, &old.name, other);
            return Ok(());
        }
        match (moved_is_directory, self.node(other).is_directory()) {
            (true, false) => return Err(Error::NotDirectory),
            (false, true) => return Err(Error::IsDirectory),
            _ => {}
        }
        self.permit_move(caller, moved, &old, &new)?;
        if self.node(other).entries().is_ok_and(|entries| !entries.is_empty()) {
            return Err(Error::NotEmpty);
        }
        self.remove_name(caller, new.parent, &new.name);
        self.remove_name(caller, old.parent, &old.name);
        self.add_name(caller, new.parent, &new.name, moved);
        self.drop_if_unreachable(other);
        Ok(())
    }

    /// Checks that `caller` may write a directory that gets another parent, because its `..`
    /// changes.
    fn permit_move(&self, caller: &Caller, moved: NodeId, old: &Walk, new: &Walk) -> Result<()> {
        match self.node(moved).is_directory() && old.parent != new.parent {
            true => self.node(moved).permit(caller, WRITE),
            false => Ok(()),
        }
    }

    /// Whether the directory `inner` is `outer` or lies below it.
    fn is_below(&self, inner: NodeId, outer: NodeId) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            match self.nodes.get(&at).map(|node| &node.kind) {
                Some(Kind::Directory { parent, .. }) if at != ROOT => at = *parent,
                _ => return false,
            }
        }
    }
}
