//! Options for the space of a store: what stays in it, how long a write waits for space, and how
//! large the tiers may be in total.
//!
//! Must stay true: every bad value is refused here, before anything is created.

use cairn_agent::model::job::TierSpec;
use cairn_job::checkpoint::space_policy::SpacePolicy;
use clap::Args;
use serde::Deserialize;

use crate::error::{Error, Result, SettingError, TierError};
use crate::output::duration;
use crate::size;
use crate::store::tier::{TIER_BYTES_MIN, TierRequest};

/// Expected form of `--retain`, for error messages.
const RETAIN_SHAPE: &str = "what stays, as in count=3, bytes=20G or age=2h, or several with commas";

/// Options of space.
#[derive(Args, Debug, Default)]
pub struct SpaceArguments {
    /// Which complete checkpoints stay in the store: the newest N of those whose names differ only
    /// in numbers (count=N), as many as fit in a size (bytes=20G), those up to an age (age=2h). A
    /// checkpoint must meet all given conditions. Older ones leave the store once they are drained
    /// and verified: the program does not find them any more, their copies stay. The newest always
    /// stays. Without --persist nothing leaves, not even what is archived [default: all]
    #[arg(long, value_name = "WHAT", env = "CAIRN_SPACE_RETAIN", value_delimiter = ',')]
    pub retain: Vec<String>,
    /// How long a write into a full store waits while nothing is drained, before it fails with
    /// ENOSPC. Drained files that nobody uses make room for it: their names stay, and their data
    /// are fetched from the copies when a program reads them. 0: do not wait [default: 30s]
    #[arg(long, value_name = "PERIOD", env = "CAIRN_SPACE_WAIT")]
    pub space_wait: Option<String>,
    /// Total size that the tiers may have. Larger tiers are refused; tiers without a size share
    /// what is left
    #[arg(long, value_name = "SIZE", env = "CAIRN_SPACE_QUOTA")]
    pub quota: Option<String>,
}

/// The section `[space]` of the settings file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpaceSettings {
    /// `--retain`, as a table.
    pub retain: RetainSettings,
    /// `--space-wait`.
    pub wait: Option<String>,
    /// `--quota`.
    pub quota: Option<String>,
}

/// What stays in the store.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table, as in retain = { count = 3 }")]
pub struct RetainSettings {
    /// `count=N`.
    pub count: Option<u64>,
    /// `bytes=SIZE`.
    pub bytes: Option<String>,
    /// `age=PERIOD`.
    pub age: Option<String>,
}

/// Returns the policy of the options, else of the settings file. Errors: a bad value.
pub fn policy(arguments: &SpaceArguments, settings: &SpaceSettings) -> Result<SpacePolicy> {
    let retain = match arguments.retain.is_empty() {
        true => settings.retain.clone(),
        false => retain(&arguments.retain)?,
    };
    let wait = arguments.space_wait.as_ref().or(settings.wait.as_ref());
    let quota = arguments.quota.as_ref().or(settings.quota.as_ref());
    Ok(SpacePolicy {
        retain_count: retain.count,
        retain_bytes: retain
            .bytes
            .as_deref()
            .map(bytes)
            .transpose()
            .map_err(Error::of("--retain"))?,
        retain_seconds: retain
            .age
            .as_deref()
            .map(seconds)
            .transpose()
            .map_err(Error::of("--retain"))?,
        wait_seconds: wait
            .map(|text| seconds(text))
            .transpose()
            .map_err(Error::of("--space-wait"))?,
        quota_bytes: quota.map(|quota| bytes(quota)).transpose().map_err(Error::of("--quota"))?,
    })
}

/// Returns a warning if `policy` has no effect because the store is not drained.
pub fn without_effect(policy: &SpacePolicy, drains: bool) -> Option<&'static str> {
    let is_said = policy.retains() || policy.wait_seconds.is_some();
    (is_said && !drains).then_some(
        "--retain and --space-wait have no effect without --persist: only drained files make room",
    )
}

fn retain(parts: &[String]) -> Result<RetainSettings> {
    let mut retain = RetainSettings::default();
    for part in parts {
        let bad = || {
            Error::Setting(SettingError::Value {
                option: "--retain",
                value: part.clone(),
                expected: RETAIN_SHAPE,
            })
        };
        match part.split_once('=').ok_or_else(bad)? {
            ("count", count) => retain.count = Some(count.parse().map_err(|_| bad())?),
            ("bytes", bytes) => retain.bytes = Some(bytes.to_string()),
            ("age", age) => retain.age = Some(age.to_string()),
            _ => return Err(bad()),
        }
    }
    Ok(retain)
}

fn seconds(text: &str) -> Result<u64> {
    let bad =
        |expected| Error::Setting(SettingError::Duration { text: text.to_string(), expected });
    duration::argument(text).map(|seconds| seconds.ceil() as u64).map_err(bad)
}

fn bytes(text: &str) -> Result<u64> {
    size::parse(text).ok_or_else(|| Error::Setting(SettingError::Size { text: text.to_string() }))
}

/// What is left of the quota while tiers get their sizes.
pub struct Quota {
    all_bytes: u64,
    left_bytes: u64,
}

impl Quota {
    /// Returns the quota for the tiers `wanted`; None if there is no quota. Errors: the tiers with
    /// a size exceed it.
    pub fn of(policy: &SpacePolicy, wanted: &[TierRequest]) -> Result<Option<Quota>> {
        let Some(all_bytes) = policy.quota_bytes else { return Ok(None) };
        let sized_bytes = wanted.iter().filter_map(|tier| tier.bytes).fold(0, u64::saturating_add);
        let left_bytes = all_bytes.checked_sub(sized_bytes);
        let left_bytes = left_bytes.ok_or_else(|| exceeded(sized_bytes, all_bytes))?;
        Ok(Some(Quota { all_bytes, left_bytes }))
    }

    /// Limits a tier without a requested size to what is left of the quota. Errors: less is left
    /// than the minimum of a tier.
    pub fn limit(&mut self, wanted: &TierRequest, tier: TierSpec) -> Result<TierSpec> {
        if wanted.bytes.is_some() {
            return Ok(tier);
        }
        if self.left_bytes < TIER_BYTES_MIN {
            let least = self.all_bytes - self.left_bytes + TIER_BYTES_MIN;
            return Err(exceeded(least, self.all_bytes));
        }
        let bytes = tier.bytes.min(self.left_bytes);
        self.left_bytes -= bytes;
        Ok(TierSpec { bytes, ..tier })
    }
}

/// Refuses tiers that exceed the quota.
pub fn check_quota(policy: &SpacePolicy, tiers: &[TierSpec]) -> Result<()> {
    let bytes = tiers.iter().map(|tier| tier.bytes).fold(0, u64::saturating_add);
    match policy.quota_bytes {
        Some(quota) if bytes > quota => Err(exceeded(bytes, quota)),
        _ => Ok(()),
    }
}

fn exceeded(bytes: u64, quota_bytes: u64) -> Error {
    Error::Tier(TierError::Quota { tiers: size::human(bytes), quota: size::human(quota_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(retain: &[&str]) -> SpaceArguments {
        let retain = retain.iter().map(ToString::to_string).collect();
        SpaceArguments { retain, ..SpaceArguments::default() }
    }

    #[test]
    fn options_come_before_the_file_and_bad_ones_are_refused() {
        let text = "retain = { count = 3, bytes = \"20G\", age = \"2h\" }\nwait = \"0\"";
        let settings: SpaceSettings = toml::from_str(text).expect("is TOML");
        let file = policy(&arguments(&[]), &settings).expect("is good");
        let expected = SpacePolicy {
            retain_count: Some(3),
            retain_bytes: Some(20 << 30),
            retain_seconds: Some(7200),
            wait_seconds: Some(0),
            quota_bytes: None,
        };
        assert_eq!(file, expected);
        let option = policy(&arguments(&["count=1"]), &settings).expect("is good");
        assert_eq!((option.retain_count, option.retain_bytes), (Some(1), None));
        for bad in ["3", "count=x", "bytes=many", "age=", "size=3"] {
            let error = policy(&arguments(&[bad]), &settings).expect_err(bad);
            assert_eq!(error.exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn tiers_have_the_quota_together() {
        let policy = SpacePolicy { quota_bytes: Some(64 << 20), ..SpacePolicy::default() };
        let (sized, unsized_) = (
            TierRequest { bytes: Some(48 << 20), ..TierRequest::MEMORY },
            TierRequest { bytes: None, ..TierRequest::MEMORY },
        );
        let wanted = [sized.clone(), unsized_.clone()];
        let mut quota = Quota::of(&policy, &wanted).expect("fits").expect("there is one");
        let limited = quota.limit(&unsized_, unsized_.or_of(1 << 30)).expect("fits");
        assert_eq!(limited.bytes, 16 << 20);
        quota.limit(&unsized_, unsized_.or_of(1 << 30)).expect_err("nothing is left");
        assert!(Quota::of(&policy, &[sized.clone(), sized]).is_err());
    }
}
