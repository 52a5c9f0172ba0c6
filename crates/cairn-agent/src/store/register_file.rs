//! The file of the register of checkpoints: `checkpoints.json` in the store's directory. It is
//! replaced as a whole.

use cairn_job::checkpoint::sets::register::{REGISTER_FORMAT, Register};
use std::io;
use std::path::Path;

use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::store_file::{self, MustSurvive};

/// Name of the file in the store's directory.
pub const REGISTER_FILE: &str = "checkpoints.json";
/// Maximum size of the file, bytes.
const BYTES_MAX: usize = 1 << 30;

/// Loads the register of the store in `directory`; an empty one if there is none. Errors: `File`,
/// `Json`, `Format` (written by a newer version).
pub fn load(directory: &Path) -> Result<Register> {
    let path = directory.join(REGISTER_FILE);
    let text = match store_file::read(&path, BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Register::default()),
        read => read.map_err(Error::file("read", &path))?,
    };
    format::parse(&path, &text, REGISTER_FORMAT)
}

/// Replaces the register of the store in `directory`. It is as durable as the store's directory,
/// which lies in memory.
pub fn save(register: &Register, directory: &Path) -> Result<()> {
    store_file::replace_json(&directory.join(REGISTER_FILE), register, MustSurvive::Process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::checkpoint::name::{Family, Name};
    use cairn_job::checkpoint::policy::CheckpointPolicy;
    use cairn_job::checkpoint::sets::rules::Rules;
    use cairn_job::checkpoint::sets::{DrainProgress, Member, Set};
    use cairn_job::file::path::FilePath;
    use std::fs;

    #[test]
    fn register_is_read_back_and_a_newer_or_torn_one_is_refused() {
        let directory = std::env::temp_dir().join(format!("cairn-register-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a scratch directory");
        assert_eq!(load(&directory).expect("loads"), Register::default());
        let mut register = Register::default();
        let name = Name { family: Family(b"f.{step}".to_vec()), step: Some(10.into()) };
        let path = FilePath::parse(b"f.10").expect("a path");
        let members = vec![Member { path, inode: 10, version: 1, bytes: 10 }];
        let standing = DrainProgress::Complete;
        let set = Set { name, members, newest_ns: 1, standing, families: Vec::new() };
        register.take(&[set], &Rules::of(&CheckpointPolicy::default()), 1);
        save(&register, &directory).expect("saves");
        assert_eq!(load(&directory).expect("loads"), register);
        let file = directory.join(REGISTER_FILE);
        let text = fs::read_to_string(&file).expect("reads");
        let newer = text.replacen("\"format\":1", "\"format\":2", 1);
        fs::write(&file, newer).expect("writes");
        assert!(matches!(load(&directory), Err(Error::Format { found: 2, .. })));
        fs::write(&file, "{\"format\": 1, ").expect("writes");
        assert!(matches!(load(&directory), Err(Error::Json { .. })));
        fs::remove_dir_all(directory).expect("removes");
    }
}
