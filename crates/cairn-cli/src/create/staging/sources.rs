//! What the inputs of a job consist of: the files, directories and links below their sources.
//!
//! Does not follow links below a source, and does not read files.

use cairn_agent::model::path::FilePath;
use cairn_agent::store::inputs::{Input, Inputs, StagedFile, open_source};
use cairn_agent::store::node::Kind;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::create::staging::inputs::TO_COME;
use crate::error::{Error, Result, StageError};

/// A file, directory or link outside.
#[derive(Clone)]
pub struct Outside {
    /// Where it is.
    pub source: PathBuf,
    /// Path that it gets in the store.
    pub path: FilePath,
    /// As it was found.
    pub metadata: Metadata,
}

/// What the sources of a job consist of. Parents come before what is in them. If two inputs have a
/// file for the same path, the one that was named later counts.
#[derive(Default)]
pub struct Found {
    /// Directories.
    pub directories: Vec<Outside>,
    /// Regular files.
    pub files: Vec<Outside>,
    /// Symbolic links.
    pub links: Vec<Outside>,
    /// What each path is, with those above inputs.
    kinds: HashMap<FilePath, Kind>,
    /// Files that are none of these, which are left out.
    pub others: Vec<PathBuf>,
    /// Sources that are gone, but were staged before.
    pub gone: Vec<PathBuf>,
}

impl Found {
    /// Adds what `input` consists of. Errors: it is missing and was never staged; it cannot be
    /// listed.
    pub fn walk(&mut self, input: &Input, known: &Inputs) -> Result<()> {
        let Input { source, path } = input;
        match fs::metadata(source) {
            Ok(metadata) => {
                let mut parent = path.split().map(|(parent, _)| parent);
                while let Some(above) = parent {
                    self.claim(&above, Kind::Directory, source)?;
                    parent = above.split().map(|(parent, _)| parent);
                }
                self.add(source.clone(), path.clone(), metadata)
            }
            Err(error) if is_missing(&error) => {
                let is_of_it = |(one, file): (&FilePath, &StagedFile)| {
                    one.strip_prefix(path).is_some() && file.inode != TO_COME
                };
                if !known.files.iter().any(is_of_it) {
                    return Err(Error::Stage(StageError::missing(source)));
                }
                self.gone.push(source.clone());
                Ok(())
            }
            Err(error) => Err(Error::file("look at", source)(error)),
        }
    }

    fn add(&mut self, source: PathBuf, path: FilePath, metadata: Metadata) -> Result<()> {
        let kind = metadata.file_type();
        let is_of = [
            (kind.is_dir(), Kind::Directory),
            (kind.is_file(), Kind::File),
            (kind.is_symlink(), Kind::Symlink),
        ];
        for (_, kind) in is_of.into_iter().filter(|(is_it, _)| *is_it) {
            self.claim(&path, kind, &source)?;
        }
        let one = Outside { source, path, metadata };
        if kind.is_dir() {
            let list =
                || -> std::io::Result<Vec<fs::DirEntry>> { fs::read_dir(&one.source)?.collect() };
            let mut children = list().map_err(Error::file("list", &one.source))?;
            children.sort_by_key(fs::DirEntry::file_name);
            let path = one.path.clone();
            self.directories.push(one);
            for child in children {
                let source = child.path();
                let metadata = child.metadata().map_err(Error::file("look at", &source))?;
                self.add(source, path.join(child.file_name().as_bytes()), metadata)?;
            }
        } else if kind.is_file() {
            self.files.push(one);
        } else if kind.is_symlink() {
            self.links.push(one);
        } else {
            self.others.push(one.source);
        }
        Ok(())
    }
}

impl Found {
    /// Records what `path` is. Removes what an earlier input has there. Errors: that is something
    /// of another kind.
    fn claim(&mut self, path: &FilePath, kind: Kind, source: &Path) -> Result<()> {
        let earlier = self.kinds.insert(path.clone(), kind);
        match earlier {
            Some(earlier) if earlier != kind => {
                let (source, path) = (source.to_path_buf(), path.to_string());
                return Err(Error::Stage(StageError::Overlap { source_path: source, path }));
            }
            Some(Kind::File) => self.files.retain(|one| one.path != *path),
            Some(Kind::Symlink) => self.links.retain(|one| one.path != *path),
            Some(Kind::Directory) | None => {}
        }
        Ok(())
    }
}

/// Whether an error says that there is no such file.
pub fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Opens a source for reading.
pub fn open(path: &Path) -> Result<File> {
    open_source(path).map_err(|error| match is_missing(&error) {
        true => Error::Stage(StageError::Changed { path: path.to_path_buf() }),
        false => Error::file("open", path)(error),
    })
}
