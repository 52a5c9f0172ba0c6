//! How checksums, permission bits and times are written in JSON files.

use cairn_core::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};
use std::str::FromStr;

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

/// Writes a checksum as eight hexadecimal digits.
pub fn write_checksum<S: Serializer>(checksum: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{checksum:08x}"))
}

/// Reads what [`write_checksum`] wrote.
pub fn read_checksum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    u32::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
}

/// Writes permission bits as octal digits.
pub fn write_mode<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{mode:04o}"))
}

/// Reads what [`write_mode`] wrote.
pub fn read_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    u32::from_str_radix(&String::deserialize(deserializer)?, 8).map_err(D::Error::custom)
}

/// Writes a time, nanoseconds since the epoch, as seconds with nine decimals.
pub fn write_time<S: Serializer>(time_ns: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    let sign = if *time_ns < 0 { "-" } else { "" };
    let size = time_ns.unsigned_abs();
    let (seconds, rest) = (size / NANOSECONDS_PER_SECOND, size % NANOSECONDS_PER_SECOND);
    serializer.serialize_str(&format!("{sign}{seconds}.{rest:09}"))
}

/// Reads what [`write_time`] wrote.
pub fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let (sign, size) = text.strip_prefix('-').map_or((1, &text[..]), |size| (-1, size));
    let digits = size.split_once('.').filter(|(_, decimals)| decimals.len() == 9);
    let (seconds, decimals) = digits.ok_or_else(|| D::Error::custom("a time without decimals"))?;
    let seconds = u64::from_str(seconds).map_err(D::Error::custom)?;
    let seconds = i64::try_from(seconds).map_err(D::Error::custom)?;
    let decimals = i64::from(u32::from_str(decimals).map_err(D::Error::custom)?);
    Ok(Timestamp::from_parts(sign * seconds, sign * decimals).0)
}

/// Reads a number from which others are counted. It must be exact in JSON readers, and so small
/// that counting never overflows.
pub fn read_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    match number < 1 << 53 {
        true => Ok(number),
        false => Err(D::Error::custom(format_args!("{number} is beyond what is counted here"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_a_sign_before_1970() {
        for (time_ns, written) in [
            (0, "\"0.000000000\""),
            (-5, "\"-0.000000005\""),
            (-4_999_999_994, "\"-4.999999994\""),
            (i64::MIN, "\"-9223372036.854775808\""),
            (i64::MAX, "\"9223372036.854775807\""),
        ] {
            let mut text = Vec::new();
            write_time(&time_ns, &mut serde_json::Serializer::new(&mut text)).expect("writes");
            assert_eq!(text, written.as_bytes());
            let mut reader = serde_json::Deserializer::from_slice(&text);
            assert_eq!(read_time(&mut reader).expect("reads"), time_ns);
        }
        for wrong in ["\"5\"", "\"--5.000000000\"", "\"5.00000000x\"", "\"-.000000000\""] {
            read_time(&mut serde_json::Deserializer::from_str(wrong)).expect_err(wrong);
        }
    }
}
