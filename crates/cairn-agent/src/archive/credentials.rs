//! Credentials for the server: from the environment, else from `~/.aws/credentials`.
//!
//! Must stay true: credentials are kept in memory only, and no message shows them.

use crate::model::error::{Error, Result};
use rusty_s3::Credentials;
use std::fs;
use std::path::PathBuf;

/// Returns the credentials of this process. Errors: there are none.
pub fn find() -> Result<Credentials> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(found) = of(variable) {
        return Ok(found);
    }
    let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_string());
    let of_home = || std::env::home_dir().map(|home| home.join(".aws/credentials"));
    let path = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(of_home);
    let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    of(|name| in_profile(&text, &profile, &name.to_ascii_lowercase()))
        .ok_or(Error::NoCredentials { profile })
}

fn of(value: impl Fn(&str) -> Option<String>) -> Option<Credentials> {
    let (key, secret) = (value("AWS_ACCESS_KEY_ID")?, value("AWS_SECRET_ACCESS_KEY")?);
    Some(match value("AWS_SESSION_TOKEN") {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    })
}

/// Returns the value of `name` in section `[profile]` of a credentials file.
fn in_profile(text: &str, profile: &str, name: &str) -> Option<String> {
    let header = format!("[{profile}]");
    let lines = text.lines().map(str::trim);
    let section = lines.skip_while(|line| *line != header).skip(1);
    let mut pairs =
        section.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_by_profile() {
        let text = "[other]\naws_access_key_id = A\n\n[default]\naws_access_key_id=B\n\
                    aws_secret_access_key = C=\n[last]\naws_session_token = D\n";
        let found = |profile: &str| {
            let found = of(|name| in_profile(text, profile, &name.to_ascii_lowercase()))?;
            Some((found.key().to_string(), found.secret().to_string(), found.token().is_some()))
        };
        assert_eq!(found("default"), Some(("B".into(), "C=".into(), false)));
        assert_eq!((found("other"), found("none")), (None, None));
    }
}
