//! Files and links that name a checkpoint which is set aside name the one that programs go on from, or are set aside with it.
//!
//! Must stay true: like all that takes another place, what takes theirs is built first, and moved with the rest.

use super::{build, set_aside};
use crate::error::{Error, Result};
use crate::local;
use cairn_agent::manifest::Kind;
use cairn_agent::path::FilePath;
use cairn_agent::plan::Node;
use cairn_agent::pointer::{Places, TEXT_BYTES_MAX};
use cairn_agent::read::{Buffer, read_small};
use cairn_agent::repair::{Move, is_aside};
use cairn_agent::sets::Name;
use cairn_agent::volume::{Volume, now};
use cairn_agent::write::NewFile;
use std::collections::BTreeSet;

/// What is moved for that in `volume`, and what is to be said of it: `aside` are the checkpoints that are set aside, `places` has these
/// and that one.
pub fn moves(
    volume: &Volume,
    places: &Places<'_>,
    aside: &BTreeSet<&Name>,
    goes_on: Option<&Name>,
) -> Result<(Vec<Move>, Vec<String>)> {
    let (mut moves, mut lines) = (Vec::new(), Vec::new());
    let mut buffer = Buffer::default();
    for (path, node) in volume.tree()? {
        let Some(inner) = path.strip_prefix(volume.prefix()).filter(|inner| !is_aside(inner))
        else {
            continue;
        };
        let text = match node.kind {
            _ if places.have(&path) => None,
            Kind::Symlink => Some(node.target.clone()),
            Kind::File if (1..=TEXT_BYTES_MAX).contains(&node.bytes) => {
                read_small(volume, &inner, &mut buffer)
            }
            _ => None,
        };
        let Some(text) = text else { continue };
        let Some(named) = places.named(&path, &text).filter(|name| aside.contains(name)) else {
            continue;
        };
        let becomes = goes_on.and_then(|name| Some((name, places.renamed(&path, &text, name)?)));
        let built = match &becomes {
            Some((_, text)) => replacing(volume, &inner, &node, text).map(Some).or_else(no_room)?,
            None => None,
        };
        let becomes = match (built, becomes) {
            (Some(built), Some((name, _))) => {
                moves.push(built);
                format!("names {name} now")
            }
            _ => {
                moves.extend(set_aside(volume, None, [inner].into())?);
                "is set aside, too".to_string()
            }
        };
        lines.push(format!("{path} named {named}: it {becomes}"));
    }
    Ok((moves, lines))
}

/// Nothing is built where there is no room for it.
fn no_room(error: Error) -> Result<Option<Move>> {
    use cairn_core::Error::{NoInodes, NoSpace};
    match error {
        Error::Agent(cairn_agent::Error::Store { source: NoSpace | NoInodes, .. }) => Ok(None),
        error => Err(error),
    }
}

/// Builds a file or link with another text than the one at `inner` has, and how it takes its place.
fn replacing(volume: &Volume, inner: &FilePath, node: &Node, text: &[u8]) -> Result<Move> {
    let from = build::place_of(inner);
    build::make_parents(volume, &from, &|_| None)?;
    if node.kind == Kind::Symlink {
        local::make_symlink(volume, &from, text, now().0)?;
    } else {
        let mut file = NewFile::create(volume, &from)?;
        file.append(text)?;
        file.finish(node.mode, now().0)?;
    }
    Ok(Move {
        inode: volume.attributes(&from)?.inode.0,
        from: volume.outer_path(&from),
        to: volume.outer_path(inner),
        replaces: Some((node.inode, node.version)),
    })
}
