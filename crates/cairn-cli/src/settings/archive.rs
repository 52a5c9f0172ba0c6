//! Archive of complete checkpoints: the options of `cairn run`, the section `[archive]`, the wait
//! for the archive at the end of a run, and the report about it.
//!
//! Must stay true: an invalid location is refused before anything is created. Credentials are never
//! options.

use cairn_agent::model::archive::{ArchivePolicy, ArchiveStatus, Location, Phase};
use cairn_agent::model::job::Job;
use cairn_job::checkpoint::policy::Every;
use clap::Args;
use serde::Deserialize;

use crate::error::{Error, Result, SettingError};
use crate::output::progress::Progress;
use crate::output::{self, count};
use crate::settings::checkpoint_options::{NumberOrText, every};
use crate::size::human;
use crate::store::OpenStore;

/// Region if none is given.
const REGION_DEFAULT: &str = "us-east-1";

/// Options of the archive.
#[derive(Args, Debug, Default)]
pub struct ArchiveArguments {
    /// Archive complete checkpoints in this object store: s3://BUCKET/PREFIX. Each file becomes the
    /// object PREFIX/JOB/path. Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
    /// AWS_SESSION_TOKEN, or from ~/.aws/credentials
    #[arg(long, value_name = "URL", env = "CAIRN_ARCHIVE_URL")]
    pub archive: Option<String>,
    /// How often a checkpoint is archived: one out of COUNT (10), or one per TIME (1h). The newest
    /// one is always archived when the command ends [default: 1]
    #[arg(long, value_name = "COUNT|TIME", env = "CAIRN_ARCHIVE_EVERY")]
    pub archive_every: Option<String>,
    #[command(flatten)]
    pub server: ServerArguments,
}

/// Options of the archive's server.
#[derive(Args, Debug, Default)]
pub struct ServerArguments {
    /// Server of the archive [default: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, else Amazon's]
    #[arg(long, value_name = "URL", env = "CAIRN_ARCHIVE_ENDPOINT")]
    pub archive_endpoint: Option<String>,
    /// Region of the archive's server [default: AWS_REGION or AWS_DEFAULT_REGION, else us-east-1]
    #[arg(long, value_name = "NAME", env = "CAIRN_ARCHIVE_REGION")]
    pub archive_region: Option<String>,
}

/// The section `[archive]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArchiveSettings {
    /// `--archive`.
    pub url: Option<String>,
    /// `--archive-endpoint`.
    pub endpoint: Option<String>,
    /// `--archive-region`.
    pub region: Option<String>,
    /// `--archive-every`.
    pub every: Option<NumberOrText>,
}

/// Returns the archive policy, or None if no archive is wanted. `level` is the frequency from the
/// section `[checkpoint]`; `--archive-every` and the section `[archive]` take precedence. Errors: a
/// frequency without an archive, a bad value.
pub fn policy(
    arguments: ArchiveArguments,
    settings: ArchiveSettings,
    level: Option<NumberOrText>,
) -> Result<Option<ArchivePolicy>> {
    let often = settings.every.clone().or(level).map(NumberOrText::into_text);
    let often = arguments.archive_every.or(often);
    let every = often.map(|text| every("--archive-every", &text)).transpose()?;
    match (arguments.archive.or(settings.url.clone()), every) {
        (Some(url), every) => {
            let place = place("--archive", &url, arguments.server, settings)?;
            Ok(Some(ArchivePolicy { every: every.unwrap_or_default(), ..place }))
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err(refused("--archive-every", "it needs --archive s3://BUCKET/PREFIX")),
    }
}

/// Returns the policy of the archive at `url`. `option` names the option that gave the URL, for
/// error messages.
pub fn place(
    option: &'static str,
    url: &str,
    server: ServerArguments,
    settings: ArchiveSettings,
) -> Result<ArchivePolicy> {
    let location =
        Location::parse(url).map_err(|problem| refused(option, &format!("{url} {problem}")))?;
    let endpoint = server.archive_endpoint.or(settings.endpoint);
    let endpoint = endpoint.or_else(|| variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
    if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| !is_server(endpoint)) {
        let problem = format!(
            "{endpoint} is not an http:// or https:// address; write it without a user and a path"
        );
        return Err(refused("--archive-endpoint", &problem));
    }
    let region = server.archive_region.or(settings.region);
    let region = region.or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
    let region = region.unwrap_or_else(|| REGION_DEFAULT.to_string());
    Ok(ArchivePolicy { url: location.to_string(), endpoint, region, every: Every::default() })
}

fn refused(option: &'static str, problem: &str) -> Error {
    Error::Setting(SettingError::Option { option, problem: problem.to_string() })
}

/// Whether `endpoint` is the address of a server. A password is refused, and so is a path, which
/// requests would leave out.
fn is_server(endpoint: &str) -> bool {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let rest = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', ' ', '?', '#', '/']))
}

fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// Asks the agent of `store` to archive what is missing, the newest checkpoint included, and waits
/// for it. Returns None if the job has no archive.
pub fn archive_with(store: &OpenStore, quiet: bool) -> Result<Option<ArchiveStatus>> {
    let Some(policy) = &store.job.archive else { return Ok(None) };
    let mut progress = Progress::new(&format!("archiving in {}", policy.url), 0, quiet);
    let mut show = |so_far: &cairn_agent::model::protocol::Progress| {
        progress.set(so_far.bytes_done, so_far.bytes_total);
    };
    store.ask_agent(None, |agent| agent.archive(true, &mut show))
}

/// Returns an archive status with `reason`, for a run that did not wait for the archive; None if
/// the job has no archive.
pub fn unknown(job: &Job, reason: &str) -> Option<ArchiveStatus> {
    let url = job.archive.as_ref()?.url.clone();
    let reason = Some(reason.to_string());
    Some(ArchiveStatus { url, pending: 1, reason, ..ArchiveStatus::default() })
}

/// Returns in one line why the archive is not complete.
pub fn missing(status: &ArchiveStatus) -> String {
    let reasons = status.reason.iter().chain(&status.failed);
    match reasons.map(|reason| output::printable(reason)).collect::<Vec<_>>().join("; ") {
        reasons if reasons.is_empty() => count(status.pending, "checkpoint") + " to be sent",
        reasons => reasons,
    }
}

/// Returns the state of the archive, one line per fact.
pub fn lines(status: &ArchiveStatus) -> Vec<String> {
    let ArchiveStatus { url, checkpoints, bytes, pending, failed, .. } = status;
    let there = count(*checkpoints, "checkpoint");
    let mut lines = vec![format!("{there}, {}, in {url}, verified", human(*bytes))];
    if *checkpoints == 0 && (status.reason.is_some() || *pending > 0) {
        // The agent may not have listed the archive yet, so "0 checkpoints" would be a guess.
        lines.clear();
    }
    match (&status.reason, status.phase) {
        (Some(reason), _) => {
            let wait = status.retry_in_ms.map(|left| left.div_ceil(1000));
            let wait = wait
                .map(|wait| format!(" (the agent tries again in {wait} s)"))
                .unwrap_or_default();
            lines.push(format!("archive not complete: {}{wait}", output::printable(reason)));
        }
        (None, Phase::Uploading) => {
            let (sent, of) = (human(status.sent_bytes), human(status.sending_bytes));
            let missing = count(*pending, "checkpoint");
            lines.push(format!("{missing} to be archived, {sent} of {of} of the next one sent"));
        }
        (None, _) => {}
    }
    let refused =
        failed.iter().map(|failed| format!("not archived: {}", output::printable(failed)));
    lines.extend(refused);
    let abandoned = status.abandoned.iter().map(|name| output::printable(name));
    lines.extend(
        abandoned.map(|name| format!("removed from the store to make room, not archived: {name}")),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(url: &str, every: Option<&str>) -> ArchiveArguments {
        ArchiveArguments {
            archive: Some(url.into()),
            archive_every: every.map(str::to_string),
            ..ArchiveArguments::default()
        }
    }

    #[test]
    fn command_line_goes_before_the_file_and_nonsense_is_refused() {
        let settings: ArchiveSettings = toml::from_str(
            "url = \"s3://a\"\nendpoint = \"http://[::1]:1\"\nregion = \"eu\"\nevery = 7\n",
        )
        .expect("reads");
        let found = policy(said("s3://b/c/", Some("1h")), settings.clone(), None);
        let found = found.expect("is taken").expect("is one");
        assert_eq!((found.url.as_str(), found.region.as_str()), ("s3://b/c", "eu"));
        assert_eq!(
            (found.every, found.endpoint.as_deref()),
            (Every::Seconds(3600), Some("http://[::1]:1"))
        );
        let level = Some(NumberOrText::Number(100));
        let of_file = ArchiveSettings { every: None, ..settings };
        let found = policy(ArchiveArguments::default(), of_file, level.clone()).expect("is taken");
        assert_eq!(found.expect("is one").every, Every::Count(100));
        assert!(policy(ArchiveArguments::default(), ArchiveSettings::default(), level).is_err());
        for (url, every) in [("/x", None), ("s3://", None), ("s3://b", Some("0"))] {
            assert!(policy(said(url, every), ArchiveSettings::default(), None).is_err(), "{url}");
        }
        assert!(!is_server("http://me:word@there") && !is_server("there:80"));
        assert!(is_server("https://there:80/") && !is_server("https://there/base"));
    }

    #[test]
    fn what_is_there_and_what_is_missing_is_said() {
        let mut status = ArchiveStatus {
            url: "s3://b".into(),
            checkpoints: 3,
            bytes: 1200,
            ..ArchiveStatus::default()
        };
        assert_eq!(lines(&status), ["3 checkpoints, 1.17 KiB, in s3://b, verified"]);
        status.reason = Some("cannot list s3://b/x: \x1b]0;x".into());
        assert_eq!(lines(&status)[1], "archive not complete: cannot list s3://b/x: \\x1b]0;x");
        status.reason = Some("cannot list s3://b/x: SlowDown".into());
        status.retry_in_ms = Some(1500);
        let more =
            "archive not complete: cannot list s3://b/x: SlowDown (the agent tries again in 2 s)";
        assert_eq!(lines(&status)[1], more);
        status.checkpoints = 0;
        assert_eq!(lines(&status), [more]);
    }
}
