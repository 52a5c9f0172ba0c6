//! Times as text, and the processor time of a thread.

use cairn_core::Timestamp;
use std::time::Duration;

/// Formats a time as RFC 3339, in UTC, with nanoseconds.
pub fn utc_time(time: Timestamp) -> String {
    let (seconds, nanoseconds) = time.parts();
    // SAFETY: `tm` is plain data for which zero is valid; `gmtime_r` fills it.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers lead to live values of this frame.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut parts) };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        nanoseconds
    )
}

/// Returns the processor time of this thread.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_times_sort_as_text() {
        assert_eq!(utc_time(Timestamp(0)), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(
            utc_time(Timestamp(1_700_000_000_123_456_789)),
            "2023-11-14T22:13:20.123456789Z"
        );
        assert_eq!(utc_time(Timestamp(-1)), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(utc_time(Timestamp(i64::MIN)), "1677-09-21T00:12:43.145224192Z");
    }
}
