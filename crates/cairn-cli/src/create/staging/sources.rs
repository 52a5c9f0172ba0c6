//! What the inputs of a job consist of: the files, directories and links below their sources.
//!
//! Does not follow links below a source, and does not read files.

use cairn_agent::store::inputs::{Content, Input, Inputs, SourceState, open_source};
use cairn_job::file::node::{Kind, Tree};
use cairn_job::file::path::FilePath;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
    /// Its content, as far as it is looked at here.
    pub content: Content,
}

impl Outside {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }
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
    /// Looks at the sources of `inputs`, of which `tree` has some already. Errors: one is missing,
    /// and the store does not have all of it; it cannot be listed, or is no file or directory; two
    /// do not go together.
    pub fn look(inputs: &Inputs, tree: &Tree) -> Result<Found> {
        let mut found = Found::default();
        for input in &inputs.named {
            found.walk(input, inputs, tree)?;
        }
        Ok(found)
    }

    /// Everything.
    pub fn all(&self) -> impl Iterator<Item = &Outside> {
        self.directories.iter().chain(&self.links).chain(&self.files)
    }

    fn walk(&mut self, input: &Input, inputs: &Inputs, tree: &Tree) -> Result<()> {
        let Input { source, path } = input;
        match fs::metadata(source) {
            Ok(metadata) if !metadata.is_dir() && !metadata.is_file() => {
                Err(Error::Stage(StageError::Special { path: source.clone() }))
            }
            Ok(metadata) if metadata.is_file() && path.is_root() => {
                Err(Error::Stage(StageError::NoName { path: source.clone() }))
            }
            Ok(metadata) => {
                let mut parent = path.split().map(|(parent, _)| parent);
                while let Some(above) = parent {
                    self.claim(&above, Kind::Directory, source)?;
                    parent = above.split().map(|(parent, _)| parent);
                }
                self.add(source.clone(), path.clone(), metadata)
            }
            Err(error) if is_missing(&error) => {
                let of_it =
                    inputs.staged.iter().filter(|(one, _)| one.strip_prefix(path).is_some());
                let is_here =
                    |path: &FilePath| tree.get(path).is_none_or(|node| node.absence.is_none());
                let (mut all, mut lacking) = (0, 0);
                for (path, staged) in of_it {
                    all += 1;
                    lacking += usize::from(staged.made.is_none() || !is_here(path));
                }
                match (all, lacking) {
                    (0, _) => Err(Error::Stage(StageError::missing(source))),
                    (_, 0) => {
                        self.gone.push(source.clone());
                        Ok(())
                    }
                    _ => {
                        let path = source.clone();
                        Err(Error::Stage(StageError::GoneBefore { path, lacking }))
                    }
                }
            }
            Err(error) => Err(Error::file("look at", source)(error)),
        }
    }

    fn add(&mut self, source: PathBuf, path: FilePath, metadata: Metadata) -> Result<()> {
        let kind = metadata.file_type();
        let content = if kind.is_dir() {
            Content::Directory(metadata.mode() & 0o7777)
        } else if kind.is_file() {
            Content::File(SourceState::of(&metadata))
        } else if kind.is_symlink() {
            let target = fs::read_link(&source).map_err(Error::file("read", &source))?;
            Content::Symlink(target.into_os_string().into_vec())
        } else {
            self.others.push(source);
            return Ok(());
        };
        self.claim(&path, content.kind(), &source)?;
        let one = Outside { source, path, metadata, content };
        match one.content {
            Content::File(_) => self.files.push(one),
            Content::Symlink(_) => self.links.push(one),
            Content::Directory(_) => {
                let list = || -> std::io::Result<Vec<fs::DirEntry>> {
                    fs::read_dir(&one.source)?.collect()
                };
                let mut children = list().map_err(Error::file("list", &one.source))?;
                children.sort_by_key(fs::DirEntry::file_name);
                let path = one.path.clone();
                self.directories.push(one);
                for child in children {
                    let source = child.path();
                    let metadata = child.metadata().map_err(Error::file("look at", &source))?;
                    self.add(source, path.join(child.file_name().as_bytes()), metadata)?;
                }
            }
        }
        Ok(())
    }

    /// Records what `path` is. Removes what an earlier input has there. Errors: that is something
    /// of another kind.
    fn claim(&mut self, path: &FilePath, kind: Kind, source: &Path) -> Result<()> {
        match self.kinds.insert(path.clone(), kind) {
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
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Opens a source for reading.
pub fn open(path: &Path) -> Result<File> {
    open_source(path).map_err(|error| match is_missing(&error) {
        true => Error::Stage(StageError::Changed { path: path.to_path_buf() }),
        false => Error::file("open", path)(error),
    })
}
